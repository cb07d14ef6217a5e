package headrace;

import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
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
        members.put(member, Integer.valueOf(2 + 3 * members.size()));
    }

    /** Returns the fault and its detail; then of each field its kind, its text and, of a number, its exact decimal. */
    public Object call(Object value) {
        byte[] record = (byte[]) value;
        JsonWalk walk = new JsonWalk(members, maxDepth, maxDigits);
        walk.found[0] = record == null ? "null_value" : record.length > maxBytes ? "size" : walk.fault(record);
        walk.found[1] = "duplicate_key".equals(walk.found[0]) ? walk.repeated : null;
        return RowFactory.create(walk.found);
    }
}

/** One walk over the tokens of a text. Of each field of the contract it finds kind, text and exact decimal. */
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

    final Object[] found;
    /** The path of the first key that its object has twice. */
    String repeated;
    private final Map members;
    private final int maxDepth;
    private final int maxDigits;
    /** Where the value that is read now belongs; -1 for one that no field of the contract has. */
    private int place = -1;
    /** The beginning of an object or array that a field of the contract has. */
    private StringBuilder shown;
    private boolean isEmpty;
    private boolean isObject;
    private boolean isWhole;
    private boolean isAlone;
    private boolean isTooDeep;
    private boolean isTooLong;
    private boolean isNotFinite;
    private boolean hasLoneSurrogate;
    private boolean hasControl;

    JsonWalk(Map members, int maxDepth, int maxDigits) {
        this.members = members;
        this.maxDepth = maxDepth;
        this.maxDigits = maxDigits;
        found = new Object[2 + 3 * members.size()];
    }

    /** Returns the first reason, in the order of `json_record.py`, why the record is no flat, strict object; or null. */
    String fault(byte[] record) {
        if (record.length > 5 && record[0] == 0 && record[5] == '{') {
            return "wire_format";
        }
        if (record.length > 1 && (record[0] & record[1] & 0xfe) == 0xfe && record[0] != record[1]) {
            // As UTF-16 begins.
            return "malformed";
        }
        if (!UTF8String.fromBytes(record).isValid()) {
            return "bad_utf8";
        }
        read(new String(record, StandardCharsets.UTF_8));
        return isTooDeep ? "depth"
            : isEmpty ? "empty"
            : !isWhole ? "malformed"
            : !isAlone ? isObject ? "trailing_data" : "malformed"
            : !isObject ? "not_object"
            : isTooLong ? "malformed"
            : isNotFinite ? "out_of_range"
            : repeated != null ? "duplicate_key"
            : hasLoneSurrogate ? "bad_utf8"
            : hasControl ? "control_char" : null;
    }

    private void read(String text) {
        try {
            JsonParser parser = JSON.createParser(text);
            try {
                JsonToken token = parser.nextToken();
                isEmpty = token == null;
                isObject = token == JsonToken.START_OBJECT;
                int depth = 0;
                for (; token != null; token = depth > 0 ? parser.nextToken() : null) {
                    depth -= token.isStructEnd() ? 1 : 0;
                    take(parser, token, depth);
                    depth += token.isStructStart() ? 1 : 0;
                }
                isWhole = depth == 0;
                isAlone = isWhole && parser.nextToken() == null;
            } finally {
                parser.close();
            }
        } catch (IOException malformed) {
            // What has been found of the text says how far it is right.
        }
    }

    /** Takes a token inside of `depth` objects and arrays. */
    private void take(JsonParser parser, JsonToken token, int depth) throws IOException {
        String text = parser.getText();
        boolean isText = token == JsonToken.VALUE_STRING;
        if (token == JsonToken.FIELD_NAME || isText) {
            look(text);
        }
        if (token == JsonToken.FIELD_NAME) {
            if (depth == 1) {
                Integer number = (Integer) members.get(text);
                place = number == null ? -1 : number.intValue();
            } else {
                show(quoted(text) + ":");
            }
            remember(parser, text, depth);
        } else if (token.isStructEnd()) {
            isTooDeep |= depth >= maxDepth;
            show(text);
            if (depth == 1) {
                put(text.equals("}") ? "object" : "array", String.valueOf(shown), null);
                shown = null;
            }
        } else {
            boolean isNumber = token.isNumeric();
            if (isNumber) {
                lookAtNumber(text);
            }
            if (depth > 1 || token.isStructStart()) {
                show(isText ? quoted(text) : text);
            } else {
                boolean isExact = isNumber && place >= 0 && !isNotFinite && !isTooLong;
                String kind = isText ? "text" : isNumber ? "number" : token.isBoolean() ? "boolean" : "null";
                put(kind, text, isExact ? exact(text) : null);
            }
        }
    }

    private void put(String kind, String text, String exact) {
        if (place >= 0) {
            found[place] = kind;
            found[place + 1] = UTF8String.fromString(text);
            found[place + 2] = exact;
            place = -1;
        }
    }

    /** Adds a part of an object or array, of which the beginning is shown. */
    private void show(String part) {
        if (place >= 0 && (shown == null || shown.length() < SHOWN)) {
            shown = shown == null ? new StringBuilder() : shown;
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
            hasControl |= sign < 0x20 && sign != '\t' && sign != '\n' && sign != '\r' || sign == 0x7f;
            if (Character.isSurrogate(sign)) {
                boolean isPair = Character.isHighSurrogate(sign) && at + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(at + 1));
                hasLoneSurrogate |= !isPair;
                at += isPair ? 1 : 0;
            }
        }
    }

    /** Finds keys that an object has twice; the names of the record itself may not differ by case alone either. */
    private void remember(JsonParser parser, String key, int depth) {
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
    }

    private static String path(JsonStreamContext context) {
        return context.inRoot() ? "$" : path(context.getParent())
            + (context.inObject() ? "." + context.getCurrentName() : "[" + context.getCurrentIndex() + "]");
    }

    private void lookAtNumber(String number) throws IOException {
        if (number.startsWith("+") || number.endsWith("INF")) {
            // What Jackson also takes for infinite.
            throw new IOException(number);
        }
        isNotFinite |= number.endsWith("N") || number.endsWith("y");
        int run = 0;
        for (int at = 0; at < number.length(); at++) {
            run = Character.isDigit(number.charAt(at)) ? run + 1 : 0;
            isTooLong |= run > maxDigits;
        }
    }

    /**
     * Returns a number as a plain decimal without needless zeros. One with more than 38 digits before the point fits no
     * decimal: 1e39 stands for it. Of more than 39 after the point the last one stands for the rest.
     */
    private static String exact(String number) {
        String sign = number.startsWith("-") ? "-" : "";
        String huge = sign + "1e" + MOST;
        String tiny = sign + BigDecimal.ONE.movePointLeft(MOST).toPlainString();
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
