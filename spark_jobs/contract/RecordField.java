package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.unsafe.types.UTF8String;

/** What a column reads: the type, and the restrictions that `is_proven` of record_reader.py names. */
public final class RecordField implements Serializable {
    private static final List READS = Arrays.asList(new String[] {"object", "array", "map", "variant", "text", "uuid",
        "clock", "base64", "time", "date", "boolean", "whole", "decimal", "double", "float"});
    private static final int MOST_DIGITS = 38;
    /** The first and last time of the calendar that Python, Arrow and Delta's readers share, in seconds. */
    private static final long FIRST_TIME = -62135510400L;
    private static final long LAST_TIME = 253402128000L;
    static final int OBJECT = 0, ARRAY = 1, MAP = 2, VARIANT = 3, TEXT = 4, UUID = 5, CLOCK = 6, BASE64 = 7, TIME = 8,
        DATE = 9, BOOLEAN = 10, WHOLE = 11, DECIMAL = 12, DOUBLE = 13;

    final int reads;
    /** How a reason names it, after the path of what is around it. */
    private final String name;
    /** Digits of a decimal; bits of a whole number. */
    final int precision;
    final int scale;
    private boolean required;
    private int shortest;
    int longest = Integer.MAX_VALUE;
    private Set texts;
    private Pattern pattern;
    private long[] positions;
    private Comparable minimum, maximum;
    /** How many microseconds a time may be later, and earlier, than the record. */
    private long future, past;
    final Place place;
    /** Where what was read of it is among all of the record, or of the element, that it lies in. */
    int slot;
    /** What an object's row is made of; of an array or map the column of each element. */
    RecordField[] columns = {};

    RecordField(Place place, String reads, String name, int precision, int scale) {
        this.place = place;
        this.reads = READS.indexOf(reads);
        this.name = name;
        this.precision = precision;
        this.scale = scale;
        if (this.reads < 0) {
            throw new IllegalArgumentException(reads);
        }
    }

    /** Adds a column that reads the member to which a path leads, or, without a path, each element of this array or map. */
    public RecordField column(List path, String reads, String name, boolean required, int precision, int scale) {
        RecordField column = new RecordField(place.at(path), reads, name, precision, scale);
        columns = with(columns, column);
        column.required = required;
        column.place.add(column);
        return column;
    }

    static RecordField[] with(RecordField[] columns, RecordField column) {
        RecordField[] more = (RecordField[]) Arrays.copyOf(columns, columns.length + 1);
        more[columns.length] = column;
        return more;
    }

    /** A text has so many bytes, an array or map so many elements. */
    public void lengths(int least, int most) {
        shortest = least;
        longest = most;
    }

    /** Bounds as they are written in JSON; null where there is none. */
    public void bounds(String least, String most) {
        minimum = bound(least);
        maximum = bound(most);
    }

    /** How many microseconds a time may be later, and earlier, than the record. */
    public void times(long later, long earlier) {
        future = later;
        past = earlier;
    }

    public void values(List accepted) {
        texts = new HashSet();
        for (int number = 0; number < accepted.size(); number++) {
            texts.add(UTF8String.fromString((String) accepted.get(number)));
        }
    }

    public void pattern(String form) {
        pattern = Pattern.compile(form);
    }

    /** For each position of a text a line with the characters that it may have, which become a set of 128 bits. */
    public void positions(String characters) {
        String[] lines = characters.split("\n");
        positions = new long[2 * lines.length];
        for (int position = 0; position < lines.length; position++) {
            for (int number = 0; number < lines[position].length(); number++) {
                char found = lines[position].charAt(number);
                positions[2 * position + (found >> 6)] |= 1L << (found & 63);
            }
        }
    }

    private Comparable bound(String written) {
        byte[] bytes = written == null ? null : written.getBytes(StandardCharsets.UTF_8);
        // A bound may have more digits than the column's values.
        return bytes == null ? null : (Comparable) (reads == DECIMAL
            ? TypedValue.decimal(bytes, 0, bytes.length, MOST_DIGITS, scale)
            : TypedValue.read(this, bytes, 0, bytes.length));
    }

    /** Whether a row has the values that are required. */
    boolean isComplete(Object[] row) {
        boolean isComplete = true;
        for (int number = 0; number < columns.length; number++) {
            isComplete &= row[number] != null || !columns[number].required;
        }
        return isComplete;
    }

    /** Whether there are enough elements, and those that are required. */
    boolean isComplete(Collection elements) {
        return elements.size() >= shortest && elements.size() <= longest && !(columns[0].required && elements.contains(null));
    }

    /** Whether a text or bytes, or the text of a value of any kind, may be so long. */
    boolean hasLength(int length) {
        return length >= shortest && length <= longest;
    }

    /** Whether a value, which stands between two places, is one that the column declares; `arrived`: microseconds. */
    boolean accepts(Object value, byte[] bytes, int begin, int end, long arrived) {
        return (minimum == null || minimum.compareTo(value) <= 0) && (maximum == null || maximum.compareTo(value) >= 0)
            && (reads == TEXT ? acceptsText(value, bytes, begin, end) : reads == TIME ? acceptsTime((Instant) value, arrived)
                : reads != BASE64 || hasLength(((byte[]) value).length));
    }

    private boolean acceptsText(Object value, byte[] bytes, int begin, int end) {
        // For texts that are not too long, a pattern's steps are bounded (portable_regex.py).
        return hasLength(end - begin)
            && (texts == null || texts.contains(value))
            && (positions == null || hasPositions(bytes, begin, end))
            && (pattern == null || pattern.matcher(new String(bytes, begin, end - begin, StandardCharsets.UTF_8)).find());
    }

    private boolean acceptsTime(Instant time, long arrived) {
        long seconds = time.getEpochSecond();
        long ahead = 1000000 * seconds + time.getNano() / 1000 - arrived;
        return seconds >= FIRST_TIME && (seconds < LAST_TIME || seconds == LAST_TIME && time.getNano() == 0)
            && ahead <= future && ahead >= -past;
    }

    private boolean hasPositions(byte[] bytes, int begin, int end) {
        boolean isOne = 2 * (end - begin) == positions.length;
        for (int at = begin; isOne && at < end; at++) {
            int sign = bytes[at];
            isOne = sign >= 0 && (positions[2 * (at - begin) + (sign >> 6)] >> (sign & 63) & 1) == 1;
        }
        return isOne;
    }

    /** Returns the values of columns without faults, which become reasons in the contract's order. */
    Object[] withoutFaults(Object[] values, String path, List reasons) {
        Object[] found = new Object[values.length];
        for (int number = 0; number < values.length; number++) {
            found[number] = columns[number].withoutFaults(values[number], path + columns[number].name, reasons);
        }
        return found;
    }

    private Object withoutFaults(Object value, String path, List reasons) {
        if (value instanceof Fault) {
            Fault fault = (Fault) value;
            reasons.add(RowFactory.create(new Object[] {fault.rule, path, fault.detail}));
            return null;
        }
        if (reads == OBJECT && value != null) {
            Object[] inner = new Object[columns.length];
            for (int number = 0; number < inner.length; number++) {
                inner[number] = ((Row) value).get(number);
            }
            return RowFactory.create(withoutFaults(inner, path, reasons));
        }
        if (reads == ARRAY && value != null) {
            List elements = (List) value;
            for (int number = 0; number < elements.size(); number++) {
                elements.set(number, columns[0].withoutFaults(elements.get(number), path + "[" + number + "]", reasons));
            }
        } else if (reads == MAP && value != null) {
            Object[] entries = ((Map) value).entrySet().toArray();
            for (int number = 0; number < entries.length; number++) {
                Map.Entry entry = (Map.Entry) entries[number];
                entry.setValue(columns[0].withoutFaults(entry.getValue(), path + "[" + entry.getKey() + "]", reasons));
            }
        }
        return value;
    }
}

/** Why a value is none of its column's type. It stands in the value's place until the record was read. */
final class Fault {
    static final int SHOWN = 64;
    final String rule;
    final UTF8String detail;

    Fault(String rule, UTF8String detail) {
        this.rule = rule;
        this.detail = detail == null ? null : detail.substring(0, SHOWN);
    }
}
