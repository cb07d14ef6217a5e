package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function from any record to why it is no flat, strict JSON object, and to its values as they are written
 * (json_record.py). Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class JsonRecord implements UDF1, Serializable {
    private final Map members = new HashMap();
    private int maxBytes;
    private int maxDepth;
    private int maxDigits;

    public void limit(int bytes, int depth, int digits) {
        maxBytes = bytes;
        maxDepth = depth;
        maxDigits = digits;
    }

    /** Adds the next field of the contract. */
    public void add(String member) {
        members.put(member, Integer.valueOf(members.size()));
    }

    /** Returns the fault and its detail; then of each field its kind, its text and, of a number, its exact decimal. */
    public Object call(Object value) {
        byte[] record = (byte[]) value;
        JsonFields fields = new JsonFields(members);
        if (record == null || record.length > maxBytes) {
            return fields.with(record == null ? "null_value" : "size", null);
        }
        JsonWalk walk = new JsonWalk(record, maxDepth, maxDigits, fields);
        String fault = walk.fault();
        return fields.with(fault, "duplicate_key".equals(fault) ? walk.repeated : null);
    }

    /** Returns a function from a text in UTF-8 to whether it is JSON of any kind, NaN and Infinity included. */
    public UDF1 isJson() {
        return new JsonText(maxBytes, maxDepth);
    }
}

/** Whether a text is JSON as Python reads it. */
final class JsonText implements UDF1, Serializable {
    private final int maxBytes;
    private final int maxDepth;

    JsonText(int bytes, int depth) {
        maxBytes = bytes;
        maxDepth = depth;
    }

    public Object call(Object value) {
        byte[] text = (byte[]) value;
        JsonFields none = new JsonFields(new HashMap());
        boolean isJson = text != null && text.length <= maxBytes
            && new JsonWalk(text, maxDepth, Integer.MAX_VALUE, none).isDocument();
        return Boolean.valueOf(isJson);
    }
}

/** The values of one record: of each field of the contract its kind (null if it is absent), text and exact decimal. */
final class JsonFields {
    private static final int SHOWN = 64;
    private final Map members;
    private final Object[] found;
    private int place = -1;
    private StringBuilder shown;

    JsonFields(Map members) {
        this.members = members;
        found = new Object[2 + 3 * members.size()];
    }

    Object with(String fault, String detail) {
        found[0] = fault;
        found[1] = detail;
        return RowFactory.create(found);
    }

    /** The next value of the outermost object is of this member. */
    void begin(String member) {
        Integer number = (Integer) members.get(member);
        place = number == null ? -1 : 2 + 3 * number.intValue();
    }

    /** Whether the value that is read now is of a field of the contract, or inside of it. */
    boolean areRead() {
        return place >= 0;
    }

    void set(String kind, UTF8String text, String exact) {
        found[place] = kind;
        found[place + 1] = text;
        found[place + 2] = exact;
        place = -1;
    }

    /** A part of an object or array, of which the beginning is shown. */
    void show(String part) {
        if (shown == null) {
            shown = new StringBuilder();
        }
        if (shown.length() < SHOWN) {
            shown.append(part.length() > SHOWN ? part.substring(0, SHOWN) : part);
        }
    }

    void setContainer(String kind) {
        set(kind, UTF8String.fromString(shown.toString()), null);
        shown = null;
    }
}

/** One walk over the bytes of a text, without recursion. All places are offsets, and `at` is the next one. */
final class JsonWalk {
    private final byte[] record;
    private final int maxDepth;
    private final int maxDigits;
    private final JsonFields fields;
    private int at;
    private int depth;
    private boolean[] isObject = new boolean[8];
    private int[] counts = new int[8];
    private String[] keys = new String[8];
    private final Set[] known;
    private boolean isTooDeep;
    private boolean isTooLong;
    private boolean isNotFinite;
    private boolean hasLoneSurrogate;
    private boolean hasControl;
    private int begin;
    private boolean isEscaped;
    /** The path of the first key that its object has twice. */
    String repeated;

    JsonWalk(byte[] record, int maxDepth, int maxDigits, JsonFields fields) {
        this.record = record;
        this.maxDepth = maxDepth;
        this.maxDigits = maxDigits;
        this.fields = fields;
        known = new Set[maxDepth + 1];
    }

    /** Returns the first reason, in the order of `json_record.py`, why the record is no flat, strict object; or null. */
    String fault() {
        if (record.length > 5 && record[0] == 0 && record[5] == '{') {
            return "wire_format";
        }
        if (beginsWith(0xff, 0xfe) || beginsWith(0xfe, 0xff)) {
            return "malformed";
        }
        if (!UTF8String.fromBytes(record).isValid()) {
            return "bad_utf8";
        }
        skipSpace();
        if (at == record.length) {
            return "empty";
        }
        boolean isOpened = record[at] == '{';
        boolean isWhole = isValue();
        if (!isWhole || isTooDeep) {
            return isTooDeep ? "depth" : "malformed";
        }
        if (at < record.length) {
            return isOpened ? "trailing_data" : "malformed";
        }
        return !isOpened ? "not_object"
            : isTooLong ? "malformed"
            : isNotFinite ? "out_of_range"
            : repeated != null ? "duplicate_key"
            : hasLoneSurrogate ? "bad_utf8"
            : hasControl ? "control_char" : null;
    }

    /** Whether the record begins with these two bytes, as UTF-16 does. */
    private boolean beginsWith(int first, int second) {
        return record.length > 1 && record[0] == (byte) first && record[1] == (byte) second;
    }

    boolean isDocument() {
        skipSpace();
        return isValue() && !isTooDeep && at == record.length;
    }

    /** Reads a value and the space after it; returns whether it is one. */
    private boolean isValue() {
        if (!beginsValue()) {
            return false;
        }
        while (depth > 0) {
            skipSpace();
            if (at == record.length) {
                return false;
            }
            byte sign = record[at];
            boolean isFirst = counts[depth] == 0;
            if (sign == (isObject[depth] ? '}' : ']')) {
                close();
                continue;
            }
            if (!isFirst) {
                if (sign != ',') {
                    return false;
                }
                at++;
                skipSpace();
                show(",");
            }
            counts[depth]++;
            if (isObject[depth] && !isKey() || !beginsValue()) {
                return false;
            }
        }
        skipSpace();
        return true;
    }

    /** Reads a scalar, or the bracket that opens an object or array. */
    private boolean beginsValue() {
        if (at == record.length) {
            return false;
        }
        begin = at;
        switch (record[at]) {
            case '{':
            case '[':
                open();
                return true;
            case '"':
                return isText() && put("text");
            case 't':
                return isWord("true") && put("boolean");
            case 'f':
                return isWord("false") && put("boolean");
            case 'n':
                return isWord("null") && put("null");
            default:
                return isNumber() && put("number");
        }
    }

    private void open() {
        boolean isOne = record[at] == '{';
        show(isOne ? "{" : "[");
        at++;
        depth++;
        if (depth == counts.length) {
            counts = Arrays.copyOf(counts, 2 * depth);
            isObject = Arrays.copyOf(isObject, 2 * depth);
            keys = (String[]) Arrays.copyOf(keys, 2 * depth);
        }
        counts[depth] = 0;
        isObject[depth] = isOne;
        keys[depth] = null;
    }

    private void close() {
        show(isObject[depth] ? "}" : "]");
        isTooDeep |= depth > maxDepth;
        if (depth == 2 && fields.areRead()) {
            fields.setContainer(isObject[depth] ? "object" : "array");
        }
        at++;
        depth--;
    }

    /** Reads a key, its colon and the space around it. */
    private boolean isKey() {
        begin = at;
        if (at == record.length || record[at] != '"' || !isText()) {
            return false;
        }
        String key = string();
        skipSpace();
        if (at == record.length || record[at] != ':') {
            return false;
        }
        if (depth == 1) {
            fields.begin(key);
        } else if (fields.areRead()) {
            fields.show(quoted(key) + ":");
        }
        if (repeated == null && depth <= maxDepth) {
            remember(key);
        }
        at++;
        skipSpace();
        return true;
    }

    /** Finds keys that an object has twice; those of the record itself may not differ by case alone either. */
    private void remember(String key) {
        String name = depth == 1 ? key.toLowerCase(Locale.ROOT) : key;
        boolean isNew;
        if (counts[depth] == 1) {
            isNew = true;
        } else if (counts[depth] == 2) {
            known[depth] = new HashSet();
            known[depth].add(depth == 1 ? keys[depth].toLowerCase(Locale.ROOT) : keys[depth]);
            isNew = known[depth].add(name);
        } else {
            isNew = known[depth].add(name);
        }
        keys[depth] = key;
        if (!isNew) {
            repeated = path();
        }
    }

    private String path() {
        StringBuilder path = new StringBuilder("$");
        for (int level = 1; level <= depth; level++) {
            if (isObject[level]) {
                path.append('.').append(keys[level]);
            } else {
                path.append('[').append(counts[level] - 1).append(']');
            }
        }
        return path.toString();
    }

    /** Keeps the scalar between `begin` and `at` if it is of a field of the contract. */
    private boolean put(String kind) {
        if (!fields.areRead()) {
            return true;
        }
        boolean isText = kind.equals("text");
        UTF8String token = UTF8String.fromBytes(record, begin, at - begin);
        if (depth > 1) {
            fields.show(isText ? quoted(string()) : token.toString());
        } else if (isText) {
            fields.set(kind, isEscaped ? UTF8String.fromString(string()) : inside(), null);
        } else {
            fields.set(kind, token, kind.equals("number") && !isNotFinite ? exact() : null);
        }
        return true;
    }

    private UTF8String inside() {
        return UTF8String.fromBytes(record, begin + 1, at - begin - 2);
    }

    private void show(String part) {
        if (fields.areRead()) {
            fields.show(part);
        }
    }

    private void skipSpace() {
        while (at < record.length && (record[at] == ' ' || record[at] == '\t' || record[at] == '\n' || record[at] == '\r')) {
            at++;
        }
    }

    private boolean isWord(String word) {
        for (int number = 0; number < word.length(); number++, at++) {
            if (at == record.length || record[at] != word.charAt(number)) {
                return false;
            }
        }
        return true;
    }

    /** Reads the string that begins at `at` with its quotes. */
    private boolean isText() {
        isEscaped = false;
        at++;
        while (true) {
            while (at < record.length && IS_PLAIN[record[at] & 0xff]) {
                at++;
            }
            if (at == record.length || record[at] >= 0 && record[at] < 0x20) {
                return false;
            }
            if (record[at] == '"') {
                at++;
                return true;
            }
            if (record[at] == 0x7f) {
                hasControl = true;
                at++;
            } else if (!isEscape()) {
                return false;
            }
        }
    }

    private static final boolean[] IS_PLAIN = new boolean[256];

    static {
        for (int character = 0x20; character < 256; character++) {
            IS_PLAIN[character] = character != '"' && character != '\\' && character != 0x7f;
        }
    }

    /** Reads the escape that begins at `at`; of a surrogate pair both. */
    private boolean isEscape() {
        isEscaped = true;
        if (at + 1 >= record.length) {
            return false;
        }
        byte sign = record[at + 1];
        if (sign != 'u') {
            at += 2;
            hasControl |= sign == 'b' || sign == 'f';
            return "\"\\/bfnrt".indexOf(sign) >= 0;
        }
        int unit = unit(at);
        if (unit < 0) {
            return false;
        }
        at += 6;
        boolean isTabOrEnd = unit == '\t' || unit == '\n' || unit == '\r';
        hasControl |= unit < 0x20 && !isTabOrEnd || unit == 0x7f;
        if (unit >= 0xd800 && unit < 0xe000) {
            int low = unit < 0xdc00 && at + 1 < record.length && record[at] == '\\' && record[at + 1] == 'u' ? unit(at) : -1;
            boolean isPair = low >= 0xdc00 && low < 0xe000;
            hasLoneSurrogate |= !isPair;
            at += isPair ? 6 : 0;
        }
        return true;
    }

    /** The number of the escape with four hexadecimal digits at a place, -1 if it is none. */
    private int unit(int place) {
        if (place + 6 > record.length) {
            return -1;
        }
        int unit = 0;
        for (int digit = place + 2; digit < place + 6; digit++) {
            int found = record[digit] < 0 ? -1 : Character.digit((char) record[digit], 16);
            if (found < 0) {
                return -1;
            }
            unit = 16 * unit + found;
        }
        return unit;
    }

    /** The string between `begin` and `at`, without its quotes and escapes. */
    private String string() {
        if (!isEscaped) {
            return inside().toString();
        }
        StringBuilder text = new StringBuilder();
        int from = begin + 1;
        for (int place = from; place < at - 1;) {
            if (record[place] != '\\') {
                place++;
                continue;
            }
            text.append(new String(record, from, place - from, StandardCharsets.UTF_8));
            boolean isUnit = record[place + 1] == 'u';
            text.append(isUnit ? (char) unit(place) : ESCAPED.charAt(ESCAPES.indexOf(record[place + 1])));
            place += isUnit ? 6 : 2;
            from = place;
        }
        return text.append(new String(record, from, at - 1 - from, StandardCharsets.UTF_8)).toString();
    }

    private static final String ESCAPES = "\"\\/bfnrt";
    private static final String ESCAPED = "\"\\/\b\f\n\r\t";

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    private boolean isNumber() {
        at += record[at] == '-' ? 1 : 0;
        if (at == record.length) {
            return false;
        }
        if (record[at] == 'I' || record[at] == 'N' && at == begin) {
            isNotFinite = true;
            return isWord(record[at] == 'I' ? "Infinity" : "NaN");
        }
        if (record[at] == '0') {
            at++;
        } else if (digits() == 0) {
            return false;
        }
        if (at < record.length && record[at] == '.') {
            at++;
            if (digits() == 0) {
                return false;
            }
        }
        if (at < record.length && (record[at] == 'e' || record[at] == 'E')) {
            at++;
            at += at < record.length && (record[at] == '+' || record[at] == '-') ? 1 : 0;
            return digits() > 0;
        }
        return true;
    }

    /** Reads digits; returns how many. */
    private int digits() {
        int first = at;
        while (at < record.length && record[at] >= '0' && record[at] <= '9') {
            at++;
        }
        isTooLong |= at - first > maxDigits;
        return at - first;
    }

    /** More digits than a decimal can have before or after its point. */
    private static final int MOST = 39;

    /**
     * The number between `begin` and `at` as a plain decimal without needless zeros. One with more than 38 digits before
     * the point fits no decimal: 1e39 stands for it. Of more than 39 after the point the last one stands for the rest.
     */
    private String exact() {
        StringBuilder digits = new StringBuilder();
        int point = -1;
        int place = record[begin] == '-' ? begin + 1 : begin;
        for (; place < at && record[place] != 'e' && record[place] != 'E'; place++) {
            if (record[place] == '.') {
                point = digits.length();
            } else {
                digits.append((char) record[place]);
            }
        }
        point = (point < 0 ? digits.length() : point) + exponent(place + 1);
        int first = 0;
        int end = digits.length();
        while (first < end && digits.charAt(first) == '0') {
            first++;
        }
        while (end > first && digits.charAt(end - 1) == '0') {
            end--;
        }
        if (first == end) {
            return "0";
        }
        return (record[begin] == '-' ? "-" : "") + plain(digits.substring(first, end), point - first);
    }

    /** The exponent whose first byte is at a place, 0 if the number ends before it; a huge one stands for a greater one. */
    private int exponent(int place) {
        if (place >= at) {
            return 0;
        }
        boolean isNegative = record[place] == '-';
        int exponent = 0;
        for (int digit = isNegative || record[place] == '+' ? place + 1 : place; digit < at; digit++) {
            exponent = Math.min(10 * exponent + record[digit] - '0', HUGE);
        }
        return isNegative ? -exponent : exponent;
    }

    private static final int HUGE = 100000000;

    /** Digits that begin and end with another one than zero, and the place of their point among them. */
    private static String plain(String digits, int point) {
        if (point >= MOST) {
            return "1e" + MOST;
        }
        if (point <= -MOST) {
            return "0." + zeros(MOST - 1) + "1";
        }
        String all = point <= 0 ? zeros(1 - point) + digits : digits + zeros(point - digits.length());
        int whole = Math.max(point, 1);
        if (whole == all.length()) {
            return all;
        }
        boolean isLong = all.length() - whole > MOST;
        String decimals = all.substring(whole, isLong ? whole + MOST : all.length());
        boolean isCutAtZero = isLong && decimals.endsWith("0");
        return all.substring(0, whole) + "." + (isCutAtZero ? decimals.substring(0, MOST - 1) + "1" : decimals);
    }

    private static String zeros(int count) {
        StringBuilder zeros = new StringBuilder();
        while (zeros.length() < count) {
            zeros.append('0');
        }
        return zeros.toString();
    }
}
