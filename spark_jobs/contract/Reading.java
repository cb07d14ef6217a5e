package headrace;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

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
    final void put(Place place, Object[] found, int kind, byte[] bytes, int begin, int end) {
        for (int number = 0; number < place.columns.length; number++) {
            RecordField column = place.columns[number];
            Object value = TypedValue.of(column, kind, bytes, begin, end);
            boolean isFault = value instanceof Fault;
            hasFaults |= isFault;
            isProven = isProven && !isFault && column.accepts(value, bytes, begin, end, arrived);
            found[column.slot] = value;
        }
    }

    /** Takes the text of a value of any kind. */
    final void putText(Place place, Object[] found, UTF8String text) {
        for (int number = 0; number < place.kept.length; number++) {
            isProven = isProven && place.kept[number].hasLength(text.numBytes());
        }
        Place.put(place.kept, found, text);
    }

    final void putFault(Place place, Object[] found, Fault fault) {
        hasFaults = true;
        place.block(found, fault);
    }

    /** Notes that an object is there. */
    final void putObject(Place place, Object[] found) {
        Place.put(place.columns, found, THERE);
    }

    /** Takes an array's list or a map, with its elements. */
    final void putAll(RecordField column, Object[] found, Object value, Collection elements) {
        isProven = isProven && column.isComplete(elements);
        found[column.slot] = value;
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
