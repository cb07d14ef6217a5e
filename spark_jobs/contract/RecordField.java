package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

import com.fasterxml.jackson.core.JsonToken;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.unsafe.types.UTF8String;

/** What a column reads, or an object in which columns read others. */
public final class RecordField implements Serializable {
    private static final List READS = Arrays.asList(new String[] {"through", "object", "array", "map", "variant",
        "text", "uuid", "clock", "base64", "time", "date", "boolean", "whole", "decimal", "double", "float"});
    private static final int MOST_DIGITS = 38;
    /** The first and last time of the calendar that Python, Arrow and Delta's readers share, in seconds. */
    private static final long FIRST_TIME = -62135510400L;
    private static final long LAST_TIME = 253402128000L;
    /** The first is an object of which no column is made. */
    static final int OBJECT = 1;
    static final int ARRAY = 2;
    static final int MAP = 3;
    static final int VARIANT = 4;
    static final int TEXT = 5;
    static final int UUID = 6;
    static final int CLOCK = 7;
    static final int BASE64 = 8;
    static final int TIME = 9;
    static final int DATE = 10;
    static final int BOOLEAN = 11;
    static final int WHOLE = 12;
    static final int DECIMAL = 13;
    static final int DOUBLE = 14;

    final int reads;
    /** How a reason names it, after the path of what is around it. */
    private final String name;
    private boolean required;
    /** Digits of a decimal; bits of a whole number. */
    int precision;
    int scale;
    private int shortest;
    int longest;
    private byte[][] texts;
    private Pattern pattern;
    private long[] positions;
    private Comparable minimum;
    private Comparable maximum;
    /** How many microseconds a time may be later, and earlier, than the record. */
    private long future;
    private long past;
    /** Where what was read of it is among all of the record, or of the element, that it lies in; -1 without a column. */
    int slot = -1;
    /** The record or element that it lies in. */
    private RecordField scope = this;
    /** How many slots a record or an element has. */
    int slots;
    /** What an object's row is made of. */
    RecordField[] columns = {};
    /** Its name in the record with quotes and a colon. */
    byte[] key;
    /** The members that are read of an object, in the contract's order; or what each element is. */
    RecordField[] fields = {};
    private final Map members = new HashMap();

    RecordField(String reads, String name) {
        this.reads = READS.indexOf(reads);
        this.name = name;
        if (this.reads < 0) {
            throw new IllegalArgumentException(reads);
        }
    }

    /**
     * Adds a column that reads the member to which a path leads, or, without a path, each element of this array or map.
     * A text has `shortest` to `longest` bytes, an array or map so many elements. Without a restriction, each other is
     * null: values of a text, its pattern, or the characters of each position; bounds as they are written in JSON.
     */
    public RecordField column(List path, String reads, String name, boolean required, int precision, int scale, int shortest,
            int longest, List texts, String pattern, String positions, String minimum, String maximum, long future, long past) {
        RecordField column = new RecordField(reads, name);
        column.required = required;
        column.precision = precision;
        column.scale = scale;
        column.shortest = shortest;
        column.longest = longest;
        column.texts = texts == null ? null : new byte[texts.size()][];
        for (int number = 0; texts != null && number < texts.size(); number++) {
            column.texts[number] = bytes((String) texts.get(number));
        }
        column.pattern = pattern == null ? null : Pattern.compile(pattern);
        column.positions = positions == null ? null : masks(positions);
        column.minimum = column.bound(minimum);
        column.maximum = column.bound(maximum);
        column.future = future;
        column.past = past;
        add(path, column);
        return column;
    }

    private Comparable bound(String written) {
        byte[] bytes = written == null ? null : bytes(written);
        // A bound may have more digits than the column's values.
        return bytes == null ? null : (Comparable) (reads == DECIMAL
            ? TypedValue.decimal(bytes, 0, bytes.length, MOST_DIGITS, scale)
            : TypedValue.read(this, bytes, 0, bytes.length));
    }

    /** For each position of a text the characters that it may have (a line for each), as a set of 128 bits. */
    private static long[] masks(String positions) {
        String[] lines = positions.split("\n");
        long[] masks = new long[2 * lines.length];
        for (int position = 0; position < lines.length; position++) {
            String characters = lines[position];
            for (int number = 0; number < characters.length(); number++) {
                char found = characters.charAt(number);
                masks[2 * position + (found >> 6)] |= 1L << (found & 63);
            }
        }
        return masks;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private void add(List path, RecordField column) {
        columns = with(columns, columns.length, column);
        if (path.isEmpty()) {
            fields = columns;
        } else {
            column.scope = scope;
            put(path, column);
        }
        column.slot = column.scope.slots++;
    }

    private static RecordField[] with(RecordField[] fields, int number, RecordField field) {
        RecordField[] more = (RecordField[]) Arrays.copyOf(fields, Math.max(fields.length, number + 1));
        more[number] = field;
        return more;
    }

    private void put(List path, RecordField column) {
        String first = (String) path.get(0);
        RecordField known = member(first);
        boolean isHere = path.size() == 1;
        if (known == null || isHere) {
            RecordField field = isHere ? column : new RecordField("through", "");
            field.key = bytes("\"" + first + "\":");
            int number = known == null ? fields.length : Arrays.asList(fields).indexOf(known);
            fields = with(fields, number, field);
            members.put(first, field);
            if (known != null) {
                // Until now an object of which no column was made.
                field.fields = known.fields;
                field.members.putAll(known.members);
            }
        }
        if (!isHere) {
            member(first).put(path.subList(1, path.size()), column);
        }
    }

    RecordField member(String name) {
        return (RecordField) members.get(name);
    }

    boolean hasMembers() {
        return reads <= OBJECT;
    }

    /** Whether it is read of a value that begins so. */
    boolean isIn(JsonToken token) {
        return reads == ARRAY ? token == JsonToken.START_ARRAY : reads <= MAP && token == JsonToken.START_OBJECT;
    }

    /** Gives a fault to all columns that read the value, or inside of it. */
    void block(Object[] found, Fault fault) {
        if (slot >= 0) {
            found[slot] = fault;
        }
        for (int number = 0; hasMembers() && number < fields.length; number++) {
            fields[number].block(found, fault);
        }
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
        return elements.size() >= shortest && elements.size() <= longest && !(fields[0].required && elements.contains(null));
    }

    /** Whether a text or bytes, or the text of a value of any kind, may be so long. */
    boolean hasLength(int length) {
        return length >= shortest && length <= longest;
    }

    /** Whether a value, which stands between two places, is one that the column declares; `arrived`: microseconds. */
    boolean accepts(Object value, byte[] bytes, int begin, int end, long arrived) {
        return (minimum == null || minimum.compareTo(value) <= 0) && (maximum == null || maximum.compareTo(value) >= 0)
            && (reads == TEXT ? acceptsText(bytes, begin, end) : reads == TIME ? acceptsTime((Instant) value, arrived)
                : reads != BASE64 || hasLength(((byte[]) value).length));
    }

    private boolean acceptsText(byte[] bytes, int begin, int end) {
        // For texts that are not too long, a pattern's steps are bounded (portable_regex.py).
        return hasLength(end - begin)
            && (texts == null || isOne(bytes, begin, end))
            && (positions == null || hasPositions(bytes, begin, end))
            && (pattern == null || pattern.matcher(new String(bytes, begin, end - begin, StandardCharsets.UTF_8)).find());
    }

    private boolean acceptsTime(Instant time, long arrived) {
        long seconds = time.getEpochSecond();
        long ahead = 1000000 * seconds + time.getNano() / 1000 - arrived;
        return seconds >= FIRST_TIME && (seconds < LAST_TIME || seconds == LAST_TIME && time.getNano() == 0)
            && ahead <= future && ahead >= -past;
    }

    private boolean isOne(byte[] bytes, int begin, int end) {
        for (int number = 0; number < texts.length; number++) {
            if (Arrays.equals(texts[number], 0, texts[number].length, bytes, begin, end)) {
                return true;
            }
        }
        return false;
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
                elements.set(number, fields[0].withoutFaults(elements.get(number), path + "[" + number + "]", reasons));
            }
        } else if (reads == MAP && value != null) {
            Object[] entries = ((Map) value).entrySet().toArray();
            for (int number = 0; number < entries.length; number++) {
                Map.Entry entry = (Map.Entry) entries[number];
                entry.setValue(fields[0].withoutFaults(entry.getValue(), path + "[" + entry.getKey() + "]", reasons));
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
