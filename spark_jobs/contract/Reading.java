package headrace;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.unsafe.types.UTF8String;

/** What one pass over a record has found. */
abstract class Reading {
    /** Whether the values keep what `is_proven` of record_reader.py names. */
    private boolean isProven = true;
    private boolean hasFaults;
    private static final Object THERE = new Object();
    /** When the record did, in microseconds. */
    private final long arrived;

    Reading(long arrived) {
        this.arrived = arrived;
    }

    /** Takes a scalar that is not null; `found` has what was read of the record, or of the element. */
    final void put(RecordField field, Object[] found, int kind, byte[] bytes, int begin, int end) {
        Object value = TypedValue.of(field, kind, bytes, begin, end);
        if (value instanceof Fault) {
            putFault(field, found, (Fault) value);
            return;
        }
        isProven = isProven && field.accepts(value, bytes, begin, end, arrived);
        found[field.slot] = value;
    }

    /** Takes the text of a value of any kind. */
    final void putText(RecordField field, Object[] found, UTF8String text) {
        isProven = isProven && field.hasLength(text.numBytes());
        found[field.slot] = text;
    }

    final void putFault(RecordField field, Object[] found, Fault fault) {
        hasFaults = true;
        field.block(found, fault);
    }

    /** Notes that an object is there. */
    final void putObject(RecordField field, Object[] found) {
        if (field.slot >= 0) {
            found[field.slot] = THERE;
        }
    }

    final void putElements(RecordField field, Object[] found, List elements) {
        isProven = isProven && field.isComplete(elements);
        found[field.slot] = elements;
    }

    final void putEntries(RecordField field, Object[] found, Map entries) {
        isProven = isProven && field.isComplete(entries.values());
        found[field.slot] = entries;
    }

    /** Returns a column's value; an object has a row. */
    final Object value(RecordField column, Object[] found) {
        Object value = found[column.slot];
        return value == THERE ? RowFactory.create(values(column, found)) : value;
    }

    private Object[] values(RecordField object, Object[] found) {
        Object[] values = new Object[object.columns.length];
        for (int number = 0; number < values.length; number++) {
            values[number] = value(object.columns[number], found);
        }
        isProven = isProven && object.isComplete(values);
        return values;
    }

    /** Returns the record's row: the reasons, whether the values are proven, the values. */
    final Object result(RecordField record, Object[] found) {
        Object[] values = values(record, found);
        Object[] row = new Object[2 + values.length];
        if (hasFaults) {
            List reasons = new ArrayList();
            values = record.withoutFaults(values, "", reasons);
            row[0] = reasons;
        }
        row[1] = Boolean.valueOf(isProven && !hasFaults);
        System.arraycopy(values, 0, row, 2, values.length);
        return RowFactory.create(row);
    }
}
