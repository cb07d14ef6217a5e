package headrace;

import java.io.Serializable;
import java.util.Arrays;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function from a record, and the microseconds at which it arrived, to its reasons, or its values as silver has them
 * (record_reader.py). Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class RecordReader implements UDF2, Serializable {
    private final RecordField root = new RecordField(new Place(null), "object", "", 0, 0);
    private int maxBytes;
    private int maxDepth;
    private int maxDigits;

    public void limit(int bytes, int depth, int digits) {
        maxBytes = bytes;
        maxDepth = depth;
        maxDigits = digits;
    }

    /** The record itself, of which columns read. */
    public RecordField root() {
        return root;
    }

    /** Returns the reasons, null where there is none, whether the values are proven, and the values. */
    public Object call(Object value, Object arrived) {
        byte[] record = (byte[]) value;
        if (record == null || record.length > maxBytes) {
            return refused(record == null ? "null_value" : "size", null);
        }
        long time = arrived == null ? 0 : ((Long) arrived).longValue();
        PlainScan scan = new PlainScan(record, time, maxDigits);
        Object[] found = scan.found(root);
        if (found != null) {
            return scan.result(root, found);
        }
        JsonWalk walk = new JsonWalk(root, time, maxDepth, maxDigits);
        String fault = walk.fault(record);
        // The values of a record with a fault are not used: an object that has a key twice makes no map.
        return fault == null ? walk.result(root, walk.found) : refused(fault, walk.detail);
    }

    private Object refused(String rule, String detail) {
        Object[] row = new Object[2 + root.columns.length];
        Fault fault = new Fault(rule, detail == null ? null : UTF8String.fromString(detail));
        row[0] = Arrays.asList(new Object[] {RowFactory.create(new Object[] {fault.rule, "", fault.detail})});
        row[1] = Boolean.FALSE;
        return RowFactory.create(row);
    }

    /** Whether a record needs no walk. */
    public boolean isPlain(byte[] record) {
        return new PlainScan(record, 0, maxDigits).found(root) != null;
    }
}
