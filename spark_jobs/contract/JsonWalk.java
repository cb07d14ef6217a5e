package headrace;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonStreamContext;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;

import org.apache.spark.unsafe.types.UTF8String;

/** A walk over the tokens of any record, in whatever order its members come. */
final class JsonWalk extends Reading {
    /** The limits are those of the record. Names and texts are not kept from one record to the next. */
    private static final JsonFactory JSON = new JsonFactory()
        .setStreamReadConstraints(StreamReadConstraints.builder()
            .maxNestingDepth(Integer.MAX_VALUE).maxNumberLength(Integer.MAX_VALUE)
            .maxStringLength(Integer.MAX_VALUE).maxNameLength(Integer.MAX_VALUE).build())
        .disable(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES)
        .enable(JsonParser.Feature.ALLOW_NON_NUMERIC_NUMBERS);

    final Object[] found;
    /** Where the fault is: a path, if it is at one place. */
    String detail;
    private final Place root;
    private final int maxDepth;
    private final int maxDigits;
    private JsonParser parser;
    private String source;
    /** The beginning of an object or array that a column gets, and cannot read; null while none is shown. */
    private StringBuilder shown;
    private boolean isEmpty, isObject, isWhole, isAlone, isTooDeep;
    /** Where each fault is first; `replaced`: where bytes that are no UTF-8 stood, or that character itself. */
    private String tooDeep, brokenOff, tooLong, notFinite, repeated, loneSurrogate, replaced, control;

    JsonWalk(RecordField root, long arrived, int maxDepth, int maxDigits) {
        super(arrived);
        this.root = root.place;
        this.maxDepth = maxDepth;
        this.maxDigits = maxDigits;
        found = new Object[root.place.slots];
    }

    /** Returns the first reason, in the order of `record_reader.py`, why the record is no strict object; or null. */
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

    /** Reads a value inside of `depth` objects and arrays; `place` is null for one that no column reads. */
    private void read(JsonToken token, Place place, Object[] found, int depth) throws IOException {
        boolean isKept = place != null && place.kept.length > 0 && token != JsonToken.VALUE_NULL;
        int begin = isKept ? begin() : 0;
        if (!token.isStructStart()) {
            readScalar(token, place, found);
        } else if (place == null || !place.isIn(token)) {
            readOther(token, place, found, depth);
        } else {
            begin(depth);
            if (place.form == RecordField.OBJECT) {
                readMembers(place, found, depth + 1);
            } else {
                RecordField column = place.columns[0];
                int count = place.form == RecordField.ARRAY ? readElements(column, found, depth + 1)
                    : readEntries(column, found, depth + 1);
                if (count > column.longest) {
                    putFault(place, found, new Fault("elements", UTF8String.fromString(String.valueOf(count))));
                }
            }
            isTooDeep |= depth >= maxDepth;
        }
        if (isKept) {
            putText(place, found, written(begin));
        }
    }

    private void readMembers(Place place, Object[] found, int depth) throws IOException {
        putObject(place, found);
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            String name = name(depth);
            read(parser.nextToken(), place.member(name), found, depth);
        }
    }

    private int readEntries(RecordField field, Object[] found, int depth) throws IOException {
        Map entries = new LinkedHashMap();
        int count = 0;
        for (; parser.nextToken() == JsonToken.FIELD_NAME; count++) {
            String key = name(depth);
            Object value = readElement(parser.nextToken(), field, count, depth);
            if (count < field.longest) {
                entries.put(UTF8String.fromString(key), value);
            }
        }
        putAll(field, found, entries, entries.values());
        return count;
    }

    private int readElements(RecordField field, Object[] found, int depth) throws IOException {
        List elements = new ArrayList();
        int count = 0;
        for (JsonToken token = parser.nextToken(); token != JsonToken.END_ARRAY; token = parser.nextToken()) {
            Object value = readElement(token, field, count, depth);
            if (count++ < field.longest) {
                elements.add(value);
            }
        }
        putAll(field, found, elements, elements);
        return count;
    }

    private Object readElement(JsonToken token, RecordField field, int count, int depth) throws IOException {
        RecordField item = field.columns[0];
        Object[] inner = new Object[item.place.slots];
        read(token, count < field.longest ? item.place : null, inner, depth);
        return value(item, inner);
    }

    private void readScalar(JsonToken token, Place place, Object[] found) throws IOException {
        String text = parser.getText();
        lookAt(token, text);
        if (place == null || place == root || place.form == RecordField.VARIANT || token == JsonToken.VALUE_NULL) {
            return;
        }
        if (place.form < RecordField.VARIANT) {
            putFault(place, found, new Fault("type", UTF8String.fromString(text)));
        } else if (notFinite == null && tooLong == null) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            int kind = token == JsonToken.VALUE_STRING ? TypedValue.TEXT
                : token.isNumeric() ? TypedValue.NUMBER : TypedValue.BOOLEAN;
            put(place, found, kind, bytes, 0, bytes.length);
        }
    }

    /** Reads an object or array that no column reads, or another one than its column does. */
    private void readOther(JsonToken first, Place place, Object[] found, int depth) throws IOException {
        boolean isShown = place != null && place != root && place.form != RecordField.VARIANT;
        shown = isShown ? new StringBuilder() : null;
        int level = depth;
        for (JsonToken token = first;; token = parser.nextToken()) {
            level -= token.isStructEnd() ? 1 : 0;
            if (token.isStructStart()) {
                begin(level);
            }
            isTooDeep |= token.isStructEnd() && level >= maxDepth;
            String text = token == JsonToken.FIELD_NAME ? name(level) : parser.getText();
            lookAt(token, text);
            show(token, text);
            level += token.isStructStart() ? 1 : 0;
            if (level == depth) {
                break;
            }
        }
        if (isShown) {
            putFault(place, found, new Fault("type", UTF8String.fromString(shown.toString())));
            shown = null;
        }
    }

    /** Adds a token to the beginning of an object or array that is shown. */
    private void show(JsonToken token, String text) {
        if (shown != null && shown.length() < Fault.SHOWN) {
            boolean isName = token == JsonToken.FIELD_NAME;
            boolean isNext = shown.length() > 0 && "{[:".indexOf(shown.charAt(shown.length() - 1)) < 0;
            shown.append(isNext && !token.isStructEnd() ? "," : "");
            String part = isName || token == JsonToken.VALUE_STRING
                ? "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"" : text;
            shown.append(part, 0, Math.min(part.length(), Fault.SHOWN)).append(isName ? ":" : "");
        }
    }

    /** Returns where the token begins in the text. */
    private int begin() {
        return (int) parser.currentTokenLocation().getCharOffset();
    }

    /** Returns the text from a place to the end of the token. */
    private UTF8String written(int begin) {
        return UTF8String.fromString(source.substring(begin, (int) parser.currentLocation().getCharOffset()));
    }

    private void lookAt(JsonToken token, String text) throws IOException {
        if (token == JsonToken.VALUE_STRING) {
            look(text);
        } else if (token.isNumeric()) {
            lookAtNumber(text);
        }
    }

    /** Notes where a nesting that is too deep begins; it is too deep once it ends. */
    private void begin(int depth) {
        if (depth >= maxDepth && tooDeep == null) {
            tooDeep = path(parser.getParsingContext().getParent());
        }
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
        for (int number = parts.size() - 1; number >= 0 && path.length() < Fault.SHOWN; number--) {
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
}
