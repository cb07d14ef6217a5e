package headrace;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

/** Reads Protobuf (adr-0008), by schemas as protobuf_schemas.py writes them. */
public final class ProtobufJson extends FramedJson {
    private static final int MOST_INDEXES = 32;

    Object reader(String schema) throws IOException {
        return MessageType.all(new ObjectMapper().readTree(schema));
    }

    void write(Object reader, Payload payload, JsonBytes json) throws Unread {
        String index = index(payload);
        MessageType type = (MessageType) ((Map) reader).get(index);
        if (type == null) {
            throw new Unread("undecodable", " has no message of index " + index);
        }
        type.write(payload, root, json, maxDepth);
    }

    /** Reads which message of the schema it is: the places that lead to it, the first one if there are none. */
    private static String index(Payload payload) throws Unread {
        long count = payload.zigzag();
        if (count < 0 || count > MOST_INDEXES) {
            throw new Unread("undecodable");
        }
        StringBuilder index = new StringBuilder(count == 0 ? "0" : "");
        for (int number = 0; number < count; number++) {
            index.append(number == 0 ? "" : ",").append(payload.zigzag());
        }
        return index.toString();
    }
}

/** Parts of JSON, as this compiler finds them. */
final class Json {
    private Json() {
    }

    static JsonNode at(JsonNode node, String name) {
        return (JsonNode) node.get(name);
    }

    static JsonNode at(JsonNode node, int number) {
        return (JsonNode) node.get(number);
    }
}

/** A field of a message. */
final class ProtobufField {
    static final List KINDS = Arrays.asList(new String[] {"message", "string", "bytes", "double", "float", "bool", "enum",
        "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64"});
    static final int MESSAGE = 0;
    static final int TEXT = 1;
    static final int BYTES = 2;
    static final int VARINT = 0;
    static final int FIXED64 = 1;
    static final int LENGTH = 2;
    static final int GROUP = 3;
    static final int END_GROUP = 4;
    static final int FIXED32 = 5;
    /** By kind. */
    static final int[] WIRES = {2, 2, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1, 5, 1};
    final String name;
    final byte[] key;
    final int kind;
    final int wire;
    final boolean isRepeated;
    final boolean isMap;
    /** Whether a value that is missing is another one than the default. */
    final boolean hasPresence;
    final boolean isClosed;
    final int oneof;
    final Map symbols = new HashMap();
    MessageType type;

    ProtobufField(JsonNode found) {
        name = Json.at(found, "name").asText();
        key = (",\"" + name + "\":").getBytes(StandardCharsets.UTF_8);
        kind = KINDS.indexOf(Json.at(found, "kind").asText());
        wire = Json.at(found, "group").asBoolean() ? GROUP : WIRES[kind];
        isRepeated = Json.at(found, "repeated").asBoolean();
        isMap = Json.at(found, "map").asBoolean();
        hasPresence = Json.at(found, "presence").asBoolean();
        isClosed = Json.at(found, "closed").asBoolean();
        oneof = Json.at(found, "oneof").asInt();
        for (Iterator names = Json.at(found, "symbols").fieldNames(); names.hasNext();) {
            String number = (String) names.next();
            symbols.put(Long.valueOf(number), Json.at(Json.at(found, "symbols"), number).asText());
        }
    }

    /** Reads values that another one replaces: what is no value makes no record. */
    void check(List values, Payload in, int levels) throws Unread {
        for (int number = 0; kind <= BYTES && number < values.size(); number++) {
            int[] part = (int[]) values.get(number);
            write(new Payload(in.bytes, part[1], part[2]), null, new JsonBytes(), levels);
        }
    }

    /** Adds the JSON of a value; its bytes begin where `in` is. */
    void write(Payload in, ReadMember member, JsonBytes out, int levels) throws Unread {
        switch (kind) {
            case MESSAGE:
                type.write(in, member, out, levels);
                break;
            case TEXT:
                out.text(in.bytes, in.at, in.end);
                break;
            case BYTES:
                if (member != null && member.isText) {
                    out.text(in.bytes, in.at, in.end);
                } else {
                    out.base64(in.bytes, in.at, in.end);
                }
                break;
            default:
                out.add(token(wire == VARINT ? in.varint() : in.fixed(wire == FIXED32 ? 4 : 8)));
        }
    }

    /** Adds the JSON of the default. */
    void writeDefault(JsonBytes out) {
        String found = isMap ? "{}" : isRepeated ? "[]" : kind <= BYTES ? "\"\"" : token(0);
        out.add(found);
    }

    private String token(long bits) {
        switch (kind) {
            case 3:
                double number = Double.longBitsToDouble(bits);
                return Math.abs(number) <= Double.MAX_VALUE ? Double.toString(number) : "\"" + number + "\"";
            case 4:
                float single = Float.intBitsToFloat((int) bits);
                return Math.abs(single) <= Float.MAX_VALUE ? Float.toString(single) : "\"" + single + "\"";
            case 5:
                return bits == 0 ? "false" : "true";
            case 6:
                Object symbol = symbols.get(Long.valueOf((int) bits));
                return symbol == null ? Integer.toString((int) bits) : symbol.equals("NULL_VALUE") ? "null" : "\"" + symbol + "\"";
            case 7:
            case 15:
                return Integer.toString((int) bits);
            case 9:
            case 13:
                return Integer.toUnsignedString((int) bits);
            case 11:
                return Integer.toString((int) bits >>> 1 ^ -((int) bits & 1));
            case 12:
                return Long.toString(bits >>> 1 ^ -(bits & 1));
            case 10:
            case 14:
                return Long.toUnsignedString(bits);
            default:
                return Long.toString(bits);
        }
    }
}

/** A message, and how it is written. */
final class MessageType {
    private static final long DAY = 86400;
    private final Map fields = new HashMap();
    private final List inOrder = new ArrayList();
    private final Map byName = new HashMap();
    /** What it is other than an object: a time, a duration, or a value that has no member of its own. */
    private String form = "";

    /** Returns the messages of a schema by index. */
    static Map all(JsonNode schema) {
        List types = new ArrayList();
        JsonNode messages = Json.at(schema, "messages");
        for (int number = 0; number < messages.size(); number++) {
            types.add(new MessageType());
        }
        for (int number = 0; number < messages.size(); number++) {
            ((MessageType) types.get(number)).fill(Json.at(messages, number), types);
        }
        Map found = new HashMap();
        for (Iterator names = Json.at(schema, "roots").fieldNames(); names.hasNext();) {
            String index = (String) names.next();
            found.put(index, types.get(Json.at(Json.at(schema, "roots"), index).asInt()));
        }
        return found;
    }

    private void fill(JsonNode found, List types) {
        form = Json.at(found, "form").asText();
        JsonNode declared = Json.at(found, "fields");
        for (int number = 0; number < declared.size(); number++) {
            ProtobufField field = new ProtobufField(Json.at(declared, number));
            if (field.kind == ProtobufField.MESSAGE) {
                field.type = (MessageType) types.get(Json.at(Json.at(declared, number), "message").asInt());
            }
            fields.put(Integer.valueOf(Json.at(Json.at(declared, number), "number").asInt()), field);
            inOrder.add(field);
            byName.put(field.name, field);
        }
    }

    void write(Payload in, ReadMember member, JsonBytes out, int levels) throws Unread {
        int deeper = Unread.deeper(levels);
        Map found = values(in, levels);
        if (form.isEmpty()) {
            writeMembers(found, in, member, out, deeper);
        } else if (form.equals("value")) {
            writeAlone(found, in, member, out, deeper);
        } else {
            writeTime(found, in, out);
        }
    }

    /** Returns, by field, where its values are: wire, begin and end of each; a oneof has the last of its fields. */
    private Map values(Payload in, int levels) throws Unread {
        Map found = new HashMap();
        while (in.at < in.end) {
            long tag = in.varint();
            int wire = (int) (tag & 7);
            if (tag >>> 3 == 0 || tag >>> 32 != 0) {
                throw new Unread("undecodable");
            }
            int begin = wire == ProtobufField.LENGTH ? in.take(length(in)) : in.at;
            int end = skip(in, wire, (int) (tag >>> 3), levels);
            ProtobufField field = (ProtobufField) fields.get(Integer.valueOf((int) (tag >>> 3)));
            boolean isPacked = field != null && field.isRepeated && wire == ProtobufField.LENGTH && field.kind > ProtobufField.BYTES;
            if (field == null || wire != field.wire && !isPacked) {
                continue;
            }
            if (field.isClosed && wire == ProtobufField.VARINT
                && !field.symbols.containsKey(Long.valueOf((int) new Payload(in.bytes, begin, in.at).varint()))) {
                continue;
            }
            for (int number = 0; field.oneof >= 0 && number < inOrder.size(); number++) {
                ProtobufField other = (ProtobufField) inOrder.get(number);
                if (other != field && other.oneof == field.oneof && found.containsKey(other)) {
                    other.check((List) found.remove(other), in, levels - 1);
                }
            }
            List values = (List) found.get(field);
            if (values == null) {
                values = new ArrayList();
                found.put(field, values);
            }
            if (!field.isRepeated && field.kind != ProtobufField.MESSAGE) {
                field.check(values, in, levels - 1);
                values.clear();
            }
            values.add(new int[] {wire, begin, end});
        }
        return found;
    }

    private static long length(Payload in) throws Unread {
        long length = in.varint();
        if (length > Integer.MAX_VALUE) {
            throw new Unread("undecodable");
        }
        return length;
    }

    /** Reads over a value; that of a length was taken with its length. Returns its end, of a group before the tag there. */
    private static int skip(Payload in, int wire, int number, int levels) throws Unread {
        if (wire == ProtobufField.VARINT) {
            in.varint();
        } else if (wire == ProtobufField.FIXED64 || wire == ProtobufField.FIXED32) {
            in.take(wire == ProtobufField.FIXED64 ? 8 : 4);
        } else if (wire != ProtobufField.LENGTH && wire != ProtobufField.GROUP) {
            throw new Unread("undecodable");
        }
        return wire == ProtobufField.GROUP ? skipGroup(in, number, levels) : in.at;
    }

    private static int skipGroup(Payload in, int number, int levels) throws Unread {
        int deeper = Unread.deeper(levels);
        int end = in.at;
        for (long tag = in.varint(); tag != ((long) number << 3 | ProtobufField.END_GROUP); tag = in.varint()) {
            if (tag >>> 3 == 0 || tag >>> 32 != 0) {
                throw new Unread("undecodable");
            }
            if ((tag & 7) == ProtobufField.LENGTH) {
                in.take(length(in));
            }
            skip(in, (int) (tag & 7), (int) (tag >>> 3), deeper);
            end = in.at;
        }
        return end;
    }

    private void writeMembers(Map found, Payload in, ReadMember member, JsonBytes out, int levels) throws Unread {
        int start = out.size;
        List ordered = member == null ? inOrder : ordered(member.names());
        for (int number = 0; number < ordered.size(); number++) {
            ProtobufField field = (ProtobufField) ordered.get(number);
            ReadMember inner = member == null ? null : member.of(field.name);
            int begin = out.size;
            writeMember(field, (List) found.get(field), in, inner, out, levels);
            out.size = inner == null ? begin : out.size;
        }
        out.end(start, '{', '}');
    }

    /** Returns the fields, those of these names first: the contract's order. */
    private List ordered(List names) {
        List ordered = new ArrayList();
        for (int number = 0; number < names.size(); number++) {
            if (byName.containsKey(names.get(number))) {
                ordered.add(byName.get(names.get(number)));
            }
        }
        for (int number = 0; number < inOrder.size(); number++) {
            if (!ordered.contains(inOrder.get(number))) {
                ordered.add(inOrder.get(number));
            }
        }
        return ordered;
    }

    private void writeMember(ProtobufField field, List values, Payload in, ReadMember member, JsonBytes out, int levels)
        throws Unread {
        if (values == null && field.hasPresence) {
            return;
        }
        out.add(field.key);
        try {
            writeValues(field, values, in, member, out, levels);
        } catch (Unread error) {
            throw error.inside("." + field.name);
        }
    }

    private void writeValues(ProtobufField field, List values, Payload in, ReadMember member, JsonBytes out, int levels)
        throws Unread {
        if (values == null) {
            field.writeDefault(out);
        } else if (field.isMap) {
            writeEntries(field, values, in, member, out, levels);
        } else if (field.isRepeated) {
            writeElements(field, values, in, member, out, levels);
        } else {
            field.write(merged(values, in), member, out, levels);
        }
    }

    /** The parts of a message that came in several are one message. */
    private static Payload merged(List values, Payload in) {
        int[] last = (int[]) values.get(values.size() - 1);
        if (values.size() == 1) {
            return new Payload(in.bytes, last[1], last[2]);
        }
        JsonBytes all = new JsonBytes();
        for (int number = 0; number < values.size(); number++) {
            int[] part = (int[]) values.get(number);
            all.add(in.bytes, part[1], part[2]);
        }
        return new Payload(all.found(), 0, all.size);
    }

    private void writeElements(ProtobufField field, List values, Payload in, ReadMember member, JsonBytes out, int levels)
        throws Unread {
        int deeper = Unread.deeper(levels);
        int start = out.size;
        int count = 0;
        for (int number = 0; number < values.size(); number++) {
            int[] part = (int[]) values.get(number);
            Payload value = new Payload(in.bytes, part[1], part[2]);
            boolean isPacked = part[0] == ProtobufField.LENGTH && field.kind > ProtobufField.BYTES;
            for (boolean isFirst = true; isPacked ? value.at < value.end : isFirst; isFirst = false) {
                int begin = out.size;
                try {
                    out.add(',');
                    int at = value.at;
                    field.write(value, member == null ? null : member.ofElements(), out, deeper);
                    if (isPacked && field.isClosed
                        && !field.symbols.containsKey(Long.valueOf((int) new Payload(value.bytes, at, value.at).varint()))) {
                        out.size = begin;
                        continue;
                    }
                    count++;
                } catch (Unread error) {
                    throw error.inside("[" + count + "]");
                }
            }
        }
        out.end(start, '[', ']');
    }

    /** Of the entries of one key the last one counts. */
    private void writeEntries(ProtobufField field, List values, Payload in, ReadMember member, JsonBytes out, int levels)
        throws Unread {
        int deeper = Unread.deeper(levels);
        ProtobufField key = (ProtobufField) field.type.inOrder.get(0);
        ProtobufField value = (ProtobufField) field.type.inOrder.get(1);
        List entries = new ArrayList();
        String[] keys = new String[values.size()];
        Map last = new HashMap();
        for (int number = 0; number < keys.length; number++) {
            int[] part = (int[]) values.get(number);
            Map found = field.type.values(new Payload(in.bytes, part[1], part[2]), levels);
            JsonBytes name = new JsonBytes();
            field.type.writeValues(key, (List) found.get(key), in, null, name, levels);
            String text = new String(name.found(), StandardCharsets.UTF_8);
            keys[number] = text.startsWith("\"") ? text : "\"" + text + "\"";
            last.put(keys[number], found);
            entries.add(found);
        }
        int start = out.size;
        for (int number = 0; number < keys.length; number++) {
            Map found = (Map) entries.get(number);
            String plain = keys[number].substring(1, keys[number].length() - 1);
            ReadMember inner = member == null ? null : member.of(plain);
            int begin = out.size;
            out.add("," + keys[number] + ":");
            try {
                boolean isEmpty = !found.containsKey(value) && value.kind == ProtobufField.MESSAGE;
                if (isEmpty) {
                    value.type.write(new Payload(new byte[0], 0, 0), inner, out, deeper);
                } else {
                    field.type.writeValues(value, (List) found.get(value), in, inner, out, deeper);
                }
            } catch (Unread error) {
                throw error.inside("[" + plain + "]");
            }
            out.size = inner == null || last.get(keys[number]) != found ? begin : out.size;
        }
        out.end(start, '{', '}');
    }

    /** Writes the only field that there is, as what the message is. */
    private void writeAlone(Map found, Payload in, ReadMember member, JsonBytes out, int levels) throws Unread {
        for (int number = 0; number < inOrder.size(); number++) {
            ProtobufField field = (ProtobufField) inOrder.get(number);
            if (found.containsKey(field) || inOrder.size() == 1) {
                writeValues(field, (List) found.get(field), in, member, out, levels);
                return;
            }
        }
        out.add("null");
    }

    /** Writes a time in UTC, or a duration in seconds, with as many digits as it has. */
    private void writeTime(Map found, Payload in, JsonBytes out) throws Unread {
        long seconds = number(found, in, 0);
        long nanos = (int) number(found, in, 1);
        if (form.equals("duration")) {
            boolean isNegative = seconds < 0 || nanos < 0;
            out.add((isNegative ? "\"-" : "\"") + Math.abs(seconds) + fraction(Math.abs(nanos)) + "s\"");
            return;
        }
        long day = Math.floorDiv(seconds, DAY);
        if (!Times.isDay(day) || nanos < 0 || nanos > 999999999) {
            out.add(Long.toString(seconds));
            return;
        }
        String clock = Times.clock(Math.floorMod(seconds, DAY) * 1000000).substring(0, 8);
        out.add("\"" + java.time.LocalDate.ofEpochDay(day) + "T" + clock + fraction(nanos) + "Z\"");
    }

    private long number(Map found, Payload in, int place) throws Unread {
        List values = (List) found.get(inOrder.get(place));
        if (values == null) {
            return 0;
        }
        int[] last = (int[]) values.get(values.size() - 1);
        return new Payload(in.bytes, last[1], last[2]).varint();
    }

    private static String fraction(long nanos) {
        if (nanos == 0) {
            return "";
        }
        String digits = Long.toString(1000000000L + nanos).substring(1);
        return "." + (nanos % 1000000 == 0 ? digits.substring(0, 3) : nanos % 1000 == 0 ? digits.substring(0, 6) : digits);
    }
}
