package headrace;

import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonStreamContext;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function from any record to why it is no strict JSON object, and to its values as they are written (json_record.py).
 * Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class JsonRecord implements UDF1, Serializable {
    /** The record itself, then what columns read of it. */
    private final List nodes = new ArrayList();
    private int maxBytes;
    private int maxDepth;
    private int maxDigits;

    public JsonRecord() {
        nodes.add(new JsonNode(JsonNode.OBJECT, -1, 0, 2));
    }

    public void limit(int bytes, int depth, int digits) {
        maxBytes = bytes;
        maxDepth = depth;
        maxDigits = digits;
    }

    /**
     * Adds what a column reads: the member that a path leads to in the object of number `parent`, or, without a path,
     * each element of that array or map. Returns its number. `most`: elements that it may have.
     */
    public int add(int parent, List path, String form, int most) {
        JsonNode owner = (JsonNode) nodes.get(parent);
        int code = JsonNode.code(form);
        JsonNode node = new JsonNode(code, owner.size, most, code == JsonNode.MAP ? 1 : 0);
        owner.size += code >= JsonNode.OBJECT ? 4 : 3;
        owner.put(path, node);
        nodes.add(node);
        return nodes.size() - 1;
    }

    /** Returns the fault and its detail; then of each column the kind of its value, the text, the exact decimal, the inside. */
    public Object call(Object value) {
        byte[] record = (byte[]) value;
        JsonNode root = (JsonNode) nodes.get(0);
        JsonWalk walk = new JsonWalk(root, maxDepth, maxDigits);
        String fault = record == null ? "null_value" : record.length > maxBytes ? "size" : walk.fault(record);
        // The values of a record with a fault are not used: an object that has a key twice makes no map.
        Object[] found = fault == null ? walk.found.values : new Object[root.size];
        found[0] = fault;
        found[1] = fault == null ? null : walk.detail;
        return RowFactory.create(found);
    }
}

/** A value that columns read, or in which they read others. The rows of an object, an array and a map have `size` places. */
final class JsonNode implements Serializable {
    private static final List FORMS = Arrays.asList(new String[] {"through", "value", "variant", "object", "array", "map"});
    /** An object of which no column is made: its members lie in the row of the object around it. */
    static final int THROUGH = 0;
    static final int VALUE = 1;
    static final int VARIANT = 2;
    static final int OBJECT = 3;
    static final int ARRAY = 4;
    static final int MAP = 5;

    final int form;
    /** Where its kind is in its row; -1 for the record itself and for an object of which no column is made. */
    final int place;
    /** How many objects, of which columns are made, are between its row and the value: 0 unless its path leads inside. */
    private int up;
    final int most;
    int size;
    JsonNode items;
    private final Map members = new HashMap();

    JsonNode(int form, int place, int most, int size) {
        this.form = form;
        this.place = place;
        this.most = most;
        this.size = size;
    }

    static int code(String form) {
        int code = FORMS.indexOf(form);
        if (code < 0) {
            throw new IllegalArgumentException(form);
        }
        return code;
    }

    JsonNode member(String name) {
        return (JsonNode) members.get(name);
    }

    void put(List path, JsonNode node) {
        if (path.isEmpty()) {
            items = node;
            return;
        }
        JsonNode inner = member((String) path.get(0));
        if (path.size() == 1) {
            members.put(path.get(0), inner == null ? node : node.with(inner.members));
            return;
        }
        if (inner == null) {
            inner = new JsonNode(THROUGH, -1, 0, 0);
            members.put(path.get(0), inner);
        }
        node.up += inner.form == OBJECT ? 1 : 0;
        inner.put(path.subList(1, path.size()), node);
    }

    /** Takes the members of an object of which no column was made until now: their rows are one further out. */
    private JsonNode with(Map inner) {
        members.putAll(inner);
        raise(0);
        return this;
    }

    /** `inside`: how many objects, of which columns are made, are between the new one and here. */
    private void raise(int inside) {
        for (Iterator each = members.values().iterator(); each.hasNext();) {
            JsonNode member = (JsonNode) each.next();
            if (member.up >= inside) {
                member.up++;
            }
            if (member.form == THROUGH || member.form == OBJECT) {
                member.raise(inside + (member.form == OBJECT ? 1 : 0));
            }
        }
    }

    Object[] row(JsonRow row) {
        JsonRow found = row;
        for (int level = 0; level < up; level++) {
            found = found.outer;
        }
        return found.values;
    }

    /** Whether it is read of a value that begins so. */
    boolean isIn(JsonToken token) {
        return form == ARRAY ? token == JsonToken.START_ARRAY : form != VALUE && form != VARIANT && token == JsonToken.START_OBJECT;
    }

    /** Notes a value instead of an object in which columns read; `inside` of how many of them the row is not. */
    void block(JsonRow row, int inside, UTF8String text) {
        for (Iterator each = members.values().iterator(); each.hasNext();) {
            JsonNode member = (JsonNode) each.next();
            if (member.place >= 0 && member.up >= inside) {
                JsonRow found = row;
                for (int level = inside; level < member.up; level++) {
                    found = found.outer;
                }
                found.values[member.place] = "outer";
                found.values[member.place + 1] = text;
            }
            if (member.form == THROUGH || member.form == OBJECT) {
                member.block(row, inside + (member.form == OBJECT ? 1 : 0), text);
            }
        }
    }
}

/** The values that columns read in an object, and the row of the object around. */
final class JsonRow {
    final Object[] values;
    final JsonRow outer;

    JsonRow(int size, JsonRow outer) {
        this.values = new Object[size];
        this.outer = outer;
    }
}

/** One walk over the tokens of a text. Of each column it finds kind, text, exact decimal, and what is inside. */
final class JsonWalk {
    /** The limits are those of the record. Names and texts are not kept from one record to the next. */
    private static final JsonFactory JSON = new JsonFactory()
        .setStreamReadConstraints(StreamReadConstraints.builder()
            .maxNestingDepth(Integer.MAX_VALUE).maxNumberLength(Integer.MAX_VALUE)
            .maxStringLength(Integer.MAX_VALUE).maxNameLength(Integer.MAX_VALUE).build())
        .disable(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES)
        .enable(JsonParser.Feature.ALLOW_NON_NUMERIC_NUMBERS);
    private static final int SHOWN = 64;
    /** More digits than a decimal can have before or after its point. */
    private static final int MOST = 39;
    private static final String TINY = BigDecimal.ONE.movePointLeft(MOST).toPlainString();

    final JsonRow found;
    /** Where the fault is: a path, if it is at one place. */
    String detail;
    private final JsonNode root;
    private final int maxDepth;
    private final int maxDigits;
    private JsonParser parser;
    private String source;
    /** The beginning of an object or array that a column gets, and cannot read; null while none is shown. */
    private StringBuilder shown;
    private boolean isEmpty;
    private boolean isObject;
    private boolean isWhole;
    private boolean isAlone;
    private boolean isTooDeep;
    private String tooDeep;
    private String brokenOff;
    private String tooLong;
    private String notFinite;
    private String repeated;
    private String loneSurrogate;
    /** Where bytes that are no UTF-8 stood, or that character itself. */
    private String replaced;
    private String control;

    JsonWalk(JsonNode root, int maxDepth, int maxDigits) {
        this.root = root;
        this.maxDepth = maxDepth;
        this.maxDigits = maxDigits;
        found = new JsonRow(root.size, null);
    }

    /** Returns the first reason, in the order of `json_record.py`, why the record is no strict object; or null. */
    String fault(byte[] record) {
        if (record.length > 5 && record[0] == 0 && record[5] == '{') {
            return "wire_format";
        }
        if (record.length > 1 && (record[0] & record[1] & 0xfe) == 0xfe && record[0] != record[1]) {
            // As UTF-16 begins.
            return "malformed";
        }
        source = new String(record, StandardCharsets.UTF_8);
        read();
        if (!UTF8String.fromBytes(record).isValid()) {
            return at("bad_utf8", replaced);
        }
        return isTooDeep ? at("depth", tooDeep)
            : isEmpty ? "empty"
            : !isWhole ? at("malformed", brokenOff)
            : !isAlone ? isObject ? "trailing_data" : "malformed"
            : !isObject ? "not_object"
            : tooLong != null ? at("malformed", tooLong)
            : notFinite != null ? at("out_of_range", notFinite)
            : repeated != null ? at("duplicate_key", repeated)
            : loneSurrogate != null ? at("bad_utf8", loneSurrogate)
            : control != null ? at("control_char", control) : null;
    }

    private String at(String fault, String path) {
        detail = path;
        return fault;
    }

    private void read() {
        try {
            parser = JSON.createParser(source);
            try {
                JsonToken token = parser.nextToken();
                isEmpty = token == null;
                isObject = token == JsonToken.START_OBJECT;
                if (!isEmpty) {
                    read(token, root, found, 0);
                    isWhole = true;
                    isAlone = parser.nextToken() == null;
                }
            } finally {
                parser.close();
            }
        } catch (IOException malformed) {
            // What has been found of the text says how far it is right.
            brokenOff = isObject ? path(parser.getParsingContext()) : null;
        }
    }

    /** Reads a value inside of `depth` objects and arrays; `node` is null for one that no column reads. */
    private void read(JsonToken token, JsonNode node, JsonRow row, int depth) throws IOException {
        if (!token.isStructStart()) {
            readScalar(token, node, row);
        } else if (node == null || !node.isIn(token)) {
            readOther(token, node, row, depth);
        } else {
            begin(depth);
            if (node.form == JsonNode.ARRAY) {
                readElements(node, row, depth + 1);
            } else if (node.form == JsonNode.MAP) {
                readEntries(node, row, depth + 1);
            } else {
                readMembers(node, row, depth + 1);
            }
            isTooDeep |= depth >= maxDepth;
        }
    }

    private void readMembers(JsonNode node, JsonRow row, int depth) throws IOException {
        JsonRow inner = node.place < 0 ? row : new JsonRow(node.size, row);
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            String name = name(depth);
            read(parser.nextToken(), node.member(name), inner, depth);
        }
        if (node.place >= 0) {
            put(row, node, "object", null, RowFactory.create(inner.values));
        }
    }

    private void readEntries(JsonNode node, JsonRow row, int depth) throws IOException {
        List entries = new ArrayList();
        int count = 0;
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            String key = name(depth);
            JsonRow entry = new JsonRow(node.size, null);
            entry.values[0] = key;
            boolean isOne = count++ < node.most;
            read(parser.nextToken(), isOne ? node.items : null, entry, depth);
            if (isOne) {
                entries.add(RowFactory.create(entry.values));
            }
        }
        putElements(row, node, count, entries);
    }

    private void readElements(JsonNode node, JsonRow row, int depth) throws IOException {
        List elements = new ArrayList();
        int count = 0;
        for (JsonToken token = parser.nextToken(); token != JsonToken.END_ARRAY; token = parser.nextToken()) {
            JsonRow element = new JsonRow(node.size, null);
            boolean isOne = count++ < node.most;
            read(token, isOne ? node.items : null, element, depth);
            if (isOne) {
                elements.add(RowFactory.create(element.values));
            }
        }
        putElements(row, node, count, elements);
    }

    private static void putElements(JsonRow row, JsonNode node, int count, List elements) {
        boolean areTooMany = count > node.most;
        UTF8String text = areTooMany ? UTF8String.fromString(String.valueOf(count)) : null;
        put(row, node, areTooMany ? "elements" : node.form == JsonNode.MAP ? "object" : "array", text, elements);
    }

    private void readScalar(JsonToken token, JsonNode node, JsonRow row) throws IOException {
        String text = parser.getText();
        boolean isText = token == JsonToken.VALUE_STRING;
        boolean isNumber = token.isNumeric();
        if (isText) {
            look(text);
        } else if (isNumber) {
            lookAtNumber(text);
        }
        if (node == null || node == root) {
            return;
        }
        if ((node.form == JsonNode.THROUGH || node.form == JsonNode.OBJECT) && token != JsonToken.VALUE_NULL) {
            block(node, row, UTF8String.fromString(text));
        }
        if (node.place < 0) {
            return;
        }
        boolean isVariant = node.form == JsonNode.VARIANT && token != JsonToken.VALUE_NULL;
        String kind = isVariant ? "variant" : isText ? "text" : isNumber ? "number" : token.isBoolean() ? "boolean" : "null";
        put(row, node, kind, UTF8String.fromString(isVariant ? written(begin()) : text), null);
        node.row(row)[node.place + 2] = isNumber && notFinite == null && tooLong == null ? exact(text) : null;
    }

    /** Reads an object or array that no column reads, or another one than its column does, or as it is written. */
    private void readOther(JsonToken first, JsonNode node, JsonRow row, int depth) throws IOException {
        boolean isVariant = node != null && node.form == JsonNode.VARIANT;
        int begin = isVariant ? begin() : 0;
        shown = node == null || node == root || isVariant ? null : new StringBuilder();
        int level = depth;
        for (JsonToken token = first;; token = parser.nextToken()) {
            level -= token.isStructEnd() ? 1 : 0;
            if (token.isStructStart()) {
                begin(level);
            }
            isTooDeep |= token.isStructEnd() && level >= maxDepth;
            take(token, level);
            level += token.isStructStart() ? 1 : 0;
            if (level == depth) {
                break;
            }
        }
        if (isVariant) {
            put(row, node, "variant", UTF8String.fromString(written(begin)), null);
        } else if (shown != null) {
            UTF8String text = UTF8String.fromString(shown.toString());
            shown = null;
            block(node, row, text);
            if (node.place >= 0) {
                put(row, node, first == JsonToken.START_OBJECT ? "object" : "array", text, null);
            }
        }
    }

    /** Returns where the token begins in the text. */
    private int begin() {
        return (int) parser.currentTokenLocation().getCharOffset();
    }

    /** Returns the text from a place to the end of the token. */
    private String written(int begin) {
        return source.substring(begin, (int) parser.currentLocation().getCharOffset());
    }

    private static void block(JsonNode node, JsonRow row, UTF8String text) {
        node.block(row, node.form == JsonNode.OBJECT ? 1 : 0, text);
    }

    private void take(JsonToken token, int depth) throws IOException {
        if (token == JsonToken.FIELD_NAME) {
            show(quoted(name(depth)) + ":");
            return;
        }
        String text = parser.getText();
        if (token == JsonToken.VALUE_STRING) {
            look(text);
            show(shown == null ? text : quoted(text));
            return;
        }
        if (token.isNumeric()) {
            lookAtNumber(text);
        }
        show(text);
    }

    private static void put(JsonRow row, JsonNode node, String kind, UTF8String text, Object inner) {
        Object[] values = node.row(row);
        values[node.place] = kind;
        values[node.place + 1] = text;
        if (inner != null) {
            values[node.place + 3] = inner;
        }
    }

    /** Notes where a nesting that is too deep begins; it is too deep once it ends. */
    private void begin(int depth) {
        if (depth >= maxDepth && tooDeep == null) {
            tooDeep = path(parser.getParsingContext().getParent());
        }
    }

    /** Adds a part of an object or array, of which the beginning is shown. */
    private void show(String part) {
        if (shown != null && shown.length() < SHOWN) {
            boolean isNext = shown.length() > 0 && "{[:".indexOf(shown.charAt(shown.length() - 1)) < 0;
            shown.append(isNext && !part.equals("}") && !part.equals("]") ? "," : "");
            shown.append(part, 0, Math.min(part.length(), SHOWN));
        }
    }

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    private void look(String text) {
        for (int at = 0; at < text.length(); at++) {
            char sign = text.charAt(at);
            if (sign >= 0x20 && sign < 0x7f) {
                continue;
            }
            if (control == null && (sign < 0x20 && sign != '\t' && sign != '\n' && sign != '\r' || sign == 0x7f)) {
                control = path(parser.getParsingContext());
            }
            if (sign == '\ufffd' && replaced == null) {
                replaced = path(parser.getParsingContext());
            }
            if (Character.isSurrogate(sign)) {
                boolean isPair = Character.isHighSurrogate(sign) && at + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(at + 1));
                if (!isPair && loneSurrogate == null) {
                    loneSurrogate = path(parser.getParsingContext());
                }
                at += isPair ? 1 : 0;
            }
        }
    }

    /**
     * Returns the name of a member. Finds keys that an object has twice; the names of the record itself may not differ
     * by case alone either.
     */
    private String name(int depth) throws IOException {
        String key = parser.currentName();
        look(key);
        if (repeated == null && depth <= maxDepth) {
            Set known = (Set) parser.currentValue();
            if (known == null) {
                known = new HashSet();
                parser.assignCurrentValue(known);
            }
            if (!known.add(depth == 1 ? key.toLowerCase(Locale.ROOT) : key)) {
                repeated = path(parser.getParsingContext());
            }
        }
        return key;
    }

    /** Returns the beginning of a path. Without recursion: a nesting may be deeper than a stack. */
    private static String path(JsonStreamContext context) {
        List parts = new ArrayList();
        for (JsonStreamContext each = context; !each.inRoot(); each = each.getParent()) {
            String name = each.getCurrentName();
            parts.add(each.inArray() ? "[" + Math.max(0, each.getCurrentIndex()) + "]" : name == null ? "" : "." + name);
        }
        StringBuilder path = new StringBuilder("$");
        for (int number = parts.size() - 1; number >= 0 && path.length() < SHOWN; number--) {
            path.append(parts.get(number));
        }
        return path.toString();
    }

    private void lookAtNumber(String number) throws IOException {
        if (number.startsWith("+") || number.endsWith("INF")) {
            // What Jackson also takes for infinite.
            throw new IOException(number);
        }
        if (notFinite == null && (number.endsWith("N") || number.endsWith("y"))) {
            notFinite = path(parser.getParsingContext());
        }
        int run = 0;
        for (int at = 0; at < number.length(); at++) {
            run = Character.isDigit(number.charAt(at)) ? run + 1 : 0;
            if (run > maxDigits && tooLong == null) {
                tooLong = path(parser.getParsingContext());
            }
        }
    }

    /** Whether a number is written as a whole one, which is not -0. */
    private static boolean isWhole(String number) {
        int at = number.charAt(0) == '-' ? 1 : 0;
        boolean isWhole = number.charAt(at) != '0' || number.length() == 1;
        for (; at < number.length() && isWhole; at++) {
            isWhole = number.charAt(at) >= '0' && number.charAt(at) <= '9';
        }
        return isWhole;
    }

    /**
     * Returns a number as a plain decimal without needless zeros. One with more than 38 digits before the point fits no
     * decimal: 1e39 stands for it. Of more than 39 after the point the last one stands for the rest.
     */
    private static String exact(String number) {
        if (number.length() < MOST && isWhole(number)) {
            return number;
        }
        String sign = number.startsWith("-") ? "-" : "";
        String huge = sign + "1e" + MOST;
        String tiny = sign + TINY;
        BigDecimal exact;
        try {
            exact = new BigDecimal(number).stripTrailingZeros();
        } catch (RuntimeException exponent) {
            boolean isZero = number.matches("-?[0.]+[eE].*");
            return isZero ? "0" : number.indexOf('-', 1) > 0 ? tiny : huge;
        }
        long whole = (long) exact.precision() - exact.scale();
        if (exact.signum() == 0 || whole >= MOST || whole <= -MOST) {
            return exact.signum() == 0 ? "0" : whole >= MOST ? huge : tiny;
        }
        String text = exact.setScale(Math.min(exact.scale(), MOST), RoundingMode.DOWN).toPlainString();
        boolean isCutAtZero = exact.scale() > MOST && text.endsWith("0");
        return isCutAtZero ? text.substring(0, text.length() - 1) + "1" : text;
    }
}
