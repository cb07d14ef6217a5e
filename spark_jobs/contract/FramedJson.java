package headrace;

import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;

/**
 * A function from a record in a registry's wire format to why it is none, and to the same record as JSON; a subclass
 * reads by schemas of one type. Compiled by Janino: no generics in interfaces, no lambdas.
 */
public abstract class FramedJson implements UDF1, Serializable {
    private static final int HEADER = 5;
    final ReadMember root = new ReadMember();
    int maxDepth;
    private final Map schemas = new HashMap();
    private final Map unusable = new HashMap();
    private transient Map readers;

    public void limit(int depth) {
        maxDepth = depth;
    }

    /** Adds what a column reads: a path, in which null stands for each element. */
    public void read(List path, boolean isText) {
        root.read(path, isText);
    }

    /** Adds the schema of an id, or says why it is not used. */
    public void schema(long id, String text, String why) {
        if (why == null) {
            schemas.put(Long.valueOf(id), text);
        } else {
            unusable.put(Long.valueOf(id), why);
        }
    }

    /** Returns a rule and its detail, null where the record is read; then its JSON. */
    public Object call(Object value) throws IOException {
        byte[] record = (byte[]) value;
        if (record == null) {
            return RowFactory.create(new Object[3]);
        }
        Payload payload = new Payload(record, Math.min(HEADER, record.length), record.length);
        if (record.length < HEADER || record[0] != 0) {
            return fault("wire_format", HexFormat.of().withUpperCase().formatHex(record, 0, payload.at));
        }
        Long id = Long.valueOf(ByteBuffer.wrap(record).getInt(1) & 0xffffffffL);
        Object reader = reader(id);
        if (reader == null) {
            Object why = unusable.get(id);
            return why == null ? fault("unknown_schema", id.toString()) : fault("unusable_schema", "schema " + id + " " + why);
        }
        JsonBytes json = new JsonBytes();
        try {
            write(reader, payload, json);
        } catch (Unread error) {
            return fault(error.rule, "schema " + id + error.where());
        }
        return RowFactory.create(new Object[] {null, null, json.found()});
    }

    private static Object fault(String rule, String detail) {
        return RowFactory.create(new Object[] {rule, detail, null});
    }

    private Object reader(Long id) throws IOException {
        readers = readers == null ? new HashMap() : readers;
        if (!readers.containsKey(id) && schemas.containsKey(id)) {
            readers.put(id, reader((String) schemas.get(id)));
        }
        return readers.get(id);
    }

    /** Returns what `write` reads the records of a schema with. */
    abstract Object reader(String schema) throws IOException;

    /** Adds the JSON of the record whose bytes begin where `payload` is. */
    abstract void write(Object reader, Payload payload, JsonBytes json) throws Unread;
}
