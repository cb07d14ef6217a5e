package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function from a record in plain form to its values; null for any other record (plain_form.py).
 * One pass over the bytes, without a Java string. Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class PlainRecord implements UDF1, Serializable {
    /** The record itself, then its fields. */
    private final List fields = new ArrayList();

    public PlainRecord() {
        PlainField record = new PlainField();
        record.reads = PlainField.OBJECT;
        fields.add(record);
    }

    /**
     * Adds the next field: the member that a path leads to in the object of number `parent`, or, without a path, each
     * element of that array or map. Returns its number. Without a restriction `values`, `pattern` and `positions` are
     * null. A text has at least `shortest` and at most `longest` bytes: for these a pattern's steps are bounded
     * (portable_regex.py); an array or map has so many elements.
     */
    public int add(int parent, List path, String type, boolean required, int whole, int scale, List values,
            String pattern, int shortest, int longest, String positions) {
        PlainField field = new PlainField();
        field.reads = PlainField.code(type);
        field.required = required;
        field.whole = whole;
        field.scale = scale;
        field.values = values == null ? null : new byte[values.size()][];
        for (int number = 0; values != null && number < values.size(); number++) {
            field.values[number] = bytes((String) values.get(number));
        }
        field.pattern = pattern == null ? null : Pattern.compile(pattern);
        field.shortest = shortest;
        field.longest = longest;
        field.positions = positions == null ? null : masks(positions);
        PlainField owner = (PlainField) fields.get(parent);
        field.place = owner.size++;
        owner.put(path, field);
        fields.add(field);
        return fields.size() - 1;
    }

    public Object call(Object value) {
        byte[] record = (byte[]) value;
        if (record == null || record.length < 2 || record[0] != '{' || record[record.length - 1] != '}') {
            return null;
        }
        PlainField root = (PlainField) fields.get(0);
        Object[] values = new Object[root.size];
        int end = root.readFields(record, 1, new PlainRow(values, null));
        boolean isPlain = end == record.length - 1 && (isAscii(record) || UTF8String.fromBytes(record).isValid());
        return isPlain ? RowFactory.create(values) : null;
    }

    private static boolean isAscii(byte[] record) {
        int at = 0;
        long signs = 0;
        for (; at + 8 <= record.length; at += 8) {
            signs |= Platform.getLong(record, Platform.BYTE_ARRAY_OFFSET + at);
        }
        for (; at < record.length; at++) {
            signs |= record[at];
        }
        return (signs & 0x8080808080808080L) == 0;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
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
}

/** The values that columns read in an object, and the row of the object around. */
final class PlainRow {
    final Object[] values;
    final PlainRow outer;

    PlainRow(Object[] values, PlainRow outer) {
        this.values = values;
        this.outer = outer;
    }
}

/**
 * One field. All places are offsets in the record, -1 for none; a place is never beyond the record's last byte, `}`,
 * which ends every scan.
 */
final class PlainField implements Serializable {
    byte[] key;
    /** Where its value is in the row of the object around. */
    int place;
    /** How many objects, of which columns are made, are between that row and the value. */
    private int up;
    int reads;
    boolean required;
    int whole;
    int scale;
    byte[][] values;
    Pattern pattern;
    int shortest;
    int longest;
    long[] positions;
    /** The members of an object, or what each element is; the values of an object have a row of `size` places. */
    private PlainField[] fields = {};
    int size;

    private static final String[] CODES = {
        "text", "time", "boolean", "integer", "long", "date", "base64", "number", "object", "through", "array", "map"};
    private static final int TEXT = 0;
    private static final int TIME = 1;
    private static final int BOOLEAN = 2;
    private static final int INTEGER = 3;
    private static final int LONG = 4;
    private static final int DATE = 5;
    private static final int BASE64 = 6;
    static final int OBJECT = 8;
    /** An object of which no column is made: its members lie in the row of the object around it. */
    private static final int THROUGH = 9;
    private static final int ARRAY = 10;
    private static final int MAP = 11;

    /** Returns the number of a way of reading, as `READ_AS` of plain_form.py names them. */
    static int code(String name) {
        int code = Arrays.asList(CODES).indexOf(name);
        if (code < 0) {
            throw new IllegalArgumentException(name);
        }
        return code;
    }

    void put(List path, PlainField field) {
        if (path.isEmpty()) {
            fields = new PlainField[] {field};
            return;
        }
        byte[] name = PlainRecord.bytes("\"" + path.get(0) + "\":");
        int number = 0;
        while (number < fields.length && !Arrays.equals(fields[number].key, name)) {
            number++;
        }
        if (number == fields.length) {
            fields = (PlainField[]) Arrays.copyOf(fields, number + 1);
            fields[number] = path.size() == 1 ? field : new PlainField();
            fields[number].key = name;
            fields[number].reads = path.size() == 1 ? field.reads : THROUGH;
        } else if (path.size() == 1) {
            // Until now an object of which no column was made.
            field.with(fields[number]);
            fields[number] = field;
        }
        if (path.size() > 1) {
            field.up += fields[number].reads == OBJECT ? 1 : 0;
            fields[number].required |= field.required;
            fields[number].put(path.subList(1, path.size()), field);
        }
    }

    private void with(PlainField through) {
        key = through.key;
        required |= through.required;
        fields = through.fields;
        raise(0);
    }

    /** Moves the rows of what is inside one further out. `inside`: how many objects with a column are around it here. */
    private void raise(int inside) {
        for (int number = 0; number < fields.length; number++) {
            PlainField field = fields[number];
            if (field.up >= inside) {
                field.up++;
            }
            if (field.reads == THROUGH || field.reads == OBJECT) {
                field.raise(inside + (field.reads == OBJECT ? 1 : 0));
            }
        }
    }

    private void set(PlainRow row, Object value) {
        if (up == 0) {
            row.values[place] = value;
            return;
        }
        PlainRow found = row;
        for (int level = 0; level < up; level++) {
            found = found.outer;
        }
        found.values[place] = value;
    }

    /** Reads the members of an object from its first one on; returns the place after the last. */
    int readFields(byte[] record, int begin, PlainRow row) {
        int at = begin;
        for (int number = 0; number < fields.length; number++) {
            PlainField field = fields[number];
            int from = at == begin ? at : record[at] == ',' ? at + 1 : -1;
            from = from < 0 ? -1 : field.begin(record, from);
            if (from >= 0) {
                at = field.read(record, from, row);
                if (at < 0) {
                    return -1;
                }
            } else if (field.required) {
                return -1;
            }
        }
        return at;
    }

    /** Reads the value that begins at a place into a row; returns the place after it. */
    private int read(byte[] record, int at, PlainRow row) {
        if (reads < OBJECT) {
            int end = end(record, at);
            if (end >= 0) {
                set(row, value(record, at, end));
            }
            return end;
        }
        if (!required && reads != THROUGH && isNull(record, at)) {
            return at + 4;
        }
        if (record[at] != (reads == ARRAY ? '[' : '{')) {
            return -1;
        }
        int end = reads == ARRAY ? readElements(record, at + 1, row) : reads == MAP ? readEntries(record, at + 1, row)
            : readObject(record, at + 1, row);
        return end >= 0 && end < record.length - 1 && record[end] == (reads == ARRAY ? ']' : '}') ? end + 1 : -1;
    }

    private int readObject(byte[] record, int at, PlainRow row) {
        if (reads == THROUGH) {
            return readFields(record, at, row);
        }
        Object[] inner = new Object[size];
        int end = readFields(record, at, new PlainRow(inner, row));
        set(row, RowFactory.create(inner));
        return end;
    }

    private int readElements(byte[] record, int begin, PlainRow row) {
        List elements = new ArrayList();
        int at = begin;
        while (at >= 0 && record[at] != ']') {
            int from = at == begin ? at : record[at] == ',' ? at + 1 : -1;
            if (from < 0 || elements.size() == longest) {
                return -1;
            }
            Object[] element = new Object[1];
            at = fields[0].read(record, record[from] == ' ' ? from + 1 : from, new PlainRow(element, null));
            elements.add(element[0]);
        }
        set(row, elements);
        return elements.size() < shortest ? -1 : at;
    }

    private int readEntries(byte[] record, int begin, PlainRow row) {
        Map entries = new LinkedHashMap();
        int at = begin;
        while (at >= 0 && record[at] != '}') {
            int from = at == begin ? at : record[at] == ',' ? at + 1 : -1;
            from = from >= 0 && record[from] == ' ' ? from + 1 : from;
            if (from < 0 || entries.size() == longest || record[from] != '"') {
                return -1;
            }
            int end = from + 1;
            while (IS_PLAIN[record[end] & 0xff] && end < record.length - 1) {
                end++;
            }
            if (record[end] != '"' || record[end + 1] != ':') {
                return -1;
            }
            UTF8String entry = UTF8String.fromBytes(record, from + 1, end - from - 1);
            if (entries.containsKey(entry)) {
                return -1;
            }
            Object[] element = new Object[1];
            at = fields[0].read(record, record[end + 2] == ' ' ? end + 3 : end + 2, new PlainRow(element, null));
            entries.put(entry, element[0]);
        }
        set(row, entries);
        return entries.size() < shortest ? -1 : at;
    }

    /** Returns where the value begins, after the key at `at`. */
    int begin(byte[] record, int at) {
        int begin = record[at] == ' ' ? at + 1 : at;
        if (!has(record, begin, key)) {
            return -1;
        }
        begin += key.length;
        return record[begin] == ' ' ? begin + 1 : begin;
    }

    /** Returns the place after the value that begins at `at`. */
    int end(byte[] record, int at) {
        if (!required && isNull(record, at)) {
            return at + 4;
        }
        switch (reads) {
            case TEXT:
                return endOfText(record, at);
            case TIME:
                return endOfTime(record, at);
            case BOOLEAN:
                return has(record, at, TRUE) ? at + 4 : has(record, at, FALSE) ? at + 5 : -1;
            case DATE:
                return endOfDate(record, at);
            case BASE64:
                return endOfBase64(record, at);
            default:
                return endOfNumber(record, at);
        }
    }

    /** Returns the value between two places: a time as microseconds since 1970, a date as days, a decimal as its text. */
    Object value(byte[] record, int begin, int end) {
        if (!required && isNull(record, begin)) {
            return null;
        }
        switch (reads) {
            case TEXT:
                return UTF8String.fromBytes(record, begin + 1, end - begin - 2);
            case TIME:
                return Long.valueOf(micros(record, begin + 1, end - 2));
            case BOOLEAN:
                return Boolean.valueOf(record[begin] == 't');
            case INTEGER:
                return Integer.valueOf((int) whole(record, begin, end));
            case LONG:
                return Long.valueOf(whole(record, begin, end));
            case DATE:
                return Integer.valueOf(days(record, begin + 1));
            case BASE64:
                return Base64.getDecoder().decode(Arrays.copyOfRange(record, begin + 1, end - 1));
            default:
                return UTF8String.fromBytes(record, begin, end - begin);
        }
    }

    private static final byte[] NULL = {'n', 'u', 'l', 'l'};
    private static final byte[] TRUE = {'t', 'r', 'u', 'e'};
    private static final byte[] FALSE = {'f', 'a', 'l', 's', 'e'};

    private static boolean isNull(byte[] record, int at) {
        return record[at] == 'n' && has(record, at, NULL);
    }

    /** Whether the bytes are there, and the record goes on after them. */
    private static boolean has(byte[] record, int at, byte[] bytes) {
        if (at + bytes.length >= record.length) {
            return false;
        }
        for (int number = 0; number < bytes.length; number++) {
            if (record[at + number] != bytes[number]) {
                return false;
            }
        }
        return true;
    }

    private int endOfText(byte[] record, int at) {
        if (record[at] != '"') {
            return -1;
        }
        int end = positions != null ? endOfPositions(record, at + 1)
            : values != null ? endOfValue(record, at + 1) : endOfCharacters(record, at + 1);
        int length = end - at - 1;
        return end >= 0 && record[end] == '"' && length >= shortest && length <= longest ? end + 1 : -1;
    }

    private int endOfPositions(byte[] record, int at) {
        int end = at + positions.length / 2;
        for (int place = at; place < end; place++) {
            byte character = record[place];
            boolean isLast = place == record.length - 1;
            if (isLast || character < 0 || (positions[2 * (place - at) + (character >> 6)] >> (character & 63) & 1) == 0) {
                return -1;
            }
        }
        return end;
    }

    private int endOfValue(byte[] record, int at) {
        for (int number = 0; number < values.length; number++) {
            int end = at + values[number].length;
            if (has(record, at, values[number]) && record[end] == '"') {
                return end;
            }
        }
        return -1;
    }

    /** The end of a text without escapes. An optional empty text is not plain. */
    private int endOfCharacters(byte[] record, int at) {
        int end = at;
        while (IS_PLAIN[record[end] & 0xff] && end < record.length - 1) {
            end++;
        }
        if (end == at && !required) {
            return -1;
        }
        boolean isOne = pattern == null
            || end - at <= longest
                && pattern.matcher(new String(record, at, end - at, StandardCharsets.UTF_8)).matches();
        return isOne ? end : -1;
    }

    private static final boolean[] IS_PLAIN = new boolean[256];

    static {
        for (int character = 0x20; character < 256; character++) {
            IS_PLAIN[character] = character != '"' && character != '\\' && character != 0x7f;
        }
    }

    /** The end of a whole number of few enough digits, or of a decimal that fits. */
    private int endOfNumber(byte[] record, int at) {
        int first = record[at] == '-' ? at + 1 : at;
        int end = endOfDigits(record, first);
        boolean isWhole = end - first == 1 && record[first] == '0'
            || end > first && end - first <= whole && record[first] != '0';
        if (!isWhole) {
            return -1;
        }
        if (scale == 0 || record[end] != '.') {
            return end;
        }
        int fraction = endOfDigits(record, end + 1) - end - 1;
        return fraction >= 1 && fraction <= scale ? end + 1 + fraction : -1;
    }

    private static int endOfDigits(byte[] record, int at) {
        int end = at;
        while (record[end] >= '0' && record[end] <= '9') {
            end++;
        }
        return end;
    }

    private static long whole(byte[] record, int begin, int end) {
        boolean isNegative = record[begin] == '-';
        long number = 0;
        for (int at = isNegative ? begin + 1 : begin; at < end; at++) {
            number = 10 * number + record[at] - '0';
        }
        return isNegative ? -number : number;
    }

    /** The end of "2013-01-31T10:15:00.123456789Z" with its quotes; the fraction may be absent. */
    private static int endOfTime(byte[] record, int at) {
        if (at + 22 >= record.length || record[at] != '"' || !hasTime(record, at + 1)) {
            return -1;
        }
        int end = at + 20;
        if (record[end] == '.') {
            int fraction = endOfDigits(record, end + 1) - end - 1;
            if (fraction < 1 || fraction > 9) {
                return -1;
            }
            end += fraction + 1;
        }
        return record[end] == 'Z' && record[end + 1] == '"' ? end + 2 : -1;
    }

    /** The end of "2013-01-31" with its quotes; no calendar of Python has the year 0. */
    private static int endOfDate(byte[] record, int at) {
        boolean isDate = at + 12 < record.length && record[at] == '"' && hasDate(record, at + 1)
            && digits(record, at + 1, 4) > 0 && record[at + 11] == '"';
        return isDate ? at + 12 : -1;
    }

    /** The end of a text that is base64 with padding and unused bits of 0: no other text has the same bytes. */
    private static int endOfBase64(byte[] record, int at) {
        if (record[at] != '"') {
            return -1;
        }
        int end = at + 1;
        int last = 0;
        while (record[end] >= 0 && SIXTY_FOUR[record[end]] >= 0) {
            last = SIXTY_FOUR[record[end]];
            end++;
        }
        int padding = record[end] != '=' ? 0 : record[end + 1] != '=' ? 1 : 2;
        boolean isWhole = (end + padding - at - 1) % 4 == 0 && (last & (1 << 2 * padding) - 1) == 0;
        end += padding;
        return isWhole && end > at + 1 && end < record.length - 1 && record[end] == '"' ? end + 1 : -1;
    }

    private static final int[] SIXTY_FOUR = new int[128];

    static {
        Arrays.fill(SIXTY_FOUR, -1);
        String alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (int number = 0; number < 64; number++) {
            SIXTY_FOUR[alphabet.charAt(number)] = number;
        }
    }

    /** Whether "2013-01-31" is at a place; February 29 is not in plain form. */
    private static boolean hasDate(byte[] record, int at) {
        int month = digits(record, at + 5, 2);
        int day = digits(record, at + 8, 2);
        return record[at + 4] == '-' && record[at + 7] == '-' && digits(record, at, 4) >= 0 && month >= 1 && month <= 12
            && day >= 1 && day <= DAYS[month];
    }

    /** Whether "2013-01-31T10:15:00" is at a place. */
    private static boolean hasTime(byte[] record, int at) {
        return hasDate(record, at) && record[at + 10] == 'T' && record[at + 13] == ':' && record[at + 16] == ':'
            && isBelow(digits(record, at + 11, 2), 24) && isBelow(digits(record, at + 14, 2), 60)
            && isBelow(digits(record, at + 17, 2), 60);
    }

    private static final int[] DAYS = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    private static boolean isBelow(int number, int bound) {
        return number >= 0 && number < bound;
    }

    /** The number that so many digits make, negative if there are others among them. */
    private static int digits(byte[] record, int at, int count) {
        int number = 0;
        for (int place = at; place < at + count; place++) {
            int digit = record[place] - '0';
            if (digit < 0 || digit > 9) {
                return -1;
            }
            number = 10 * number + digit;
        }
        return number;
    }

    /** The microseconds of the time between a place and its `Z`; further digits are cut. */
    private static long micros(byte[] record, int at, int zone) {
        long minutes = 1440L * days(record, at) + 60 * digits(record, at + 11, 2) + digits(record, at + 14, 2);
        long micros = 60 * minutes + digits(record, at + 17, 2);
        for (int place = at + 20; place < at + 26; place++) {
            micros = 10 * micros + (place < zone ? record[place] - '0' : 0);
        }
        return micros;
    }

    private static int days(byte[] record, int at) {
        return daysSince1970(digits(record, at, 4), digits(record, at + 5, 2), digits(record, at + 8, 2));
    }

    /**
     * The days from 1970-01-01 to a date of the years 0 to 9999. The year begins in March here, so that the leap day ends
     * it: days before month m are (153 m + 2) / 5 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
     */
    private static int daysSince1970(int year, int month, int day) {
        int years = month > 2 ? year + 400 : year + 399;
        int months = month > 2 ? month - 3 : month + 9;
        // Counted from year -400, so that no quotient is rounded up: 146,097 days are 400 years.
        return 365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1 - 719468 - 146097;
    }
}
