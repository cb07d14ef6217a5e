package headrace;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;

/** Reads Avro (adr-0003). */
public final class AvroJson extends FramedJson {
    /** Returns why Avro refuses a schema, null if it does not. It may come last in a list of those that it refers to. */
    public static String refused(String text) {
        try {
            parsed(text);
            return null;
        } catch (RuntimeException error) {
            return String.valueOf(error.getMessage()).split("\n")[0];
        }
    }

    private static Schema parsed(String text) {
        Schema found = new Schema.Parser().setValidateDefaults(false).parse(text);
        return found.getType() == Schema.Type.UNION ? (Schema) found.getTypes().get(found.getTypes().size() - 1) : found;
    }

    Object reader(String schema) {
        return AvroType.of(parsed(schema), root, new IdentityHashMap());
    }

    void write(Object reader, Payload payload, JsonBytes json) throws Unread {
        ((AvroType) reader).write(payload, json, maxDepth);
        if (payload.at < payload.end) {
            throw new Unread("undecodable");
        }
    }
}

/** How a value of a schema is read, and what of it becomes JSON. */
final class AvroType {
    /** More bytes than any decimal of a column has. */
    private static final int MOST_BYTES = 64;
    private final Schema schema;
    private final ReadMember member;
    private final LogicalType logical;
    private final String logicalName;
    private String[] names = {};
    private byte[][] keys = {};
    private AvroType[] inner = {};
    /** The fields that become JSON, in the contract's order. */
    private int[] order = {};
    private boolean isInOrder = true;
    /** What is read of the entries of a map that are named. */
    private final Map entries = new HashMap();

    private AvroType(Schema schema, ReadMember member) {
        this.schema = schema;
        this.member = member;
        logical = schema.getLogicalType();
        logicalName = logical == null ? "" : logical.getName();
    }

    /** Returns the type of a schema of which a member is read; `known`: by schema and member, as one may lie in itself. */
    static AvroType of(Schema schema, ReadMember member, Map known) {
        Map ofSchema = (Map) known.get(schema);
        if (ofSchema == null) {
            ofSchema = new IdentityHashMap();
            known.put(schema, ofSchema);
        }
        AvroType type = (AvroType) ofSchema.get(member);
        if (type == null) {
            type = new AvroType(schema, member);
            ofSchema.put(member, type);
            type.addInner(known);
        }
        return type;
    }

    private void addInner(Map known) {
        switch (schema.getType()) {
            case RECORD:
                addFields(schema.getFields(), known);
                break;
            case UNION:
                inner = new AvroType[schema.getTypes().size()];
                for (int number = 0; number < inner.length; number++) {
                    inner[number] = of((Schema) schema.getTypes().get(number), member, known);
                }
                break;
            case ARRAY:
                inner = new AvroType[] {of(schema.getElementType(), member == null ? null : member.ofElements(), known)};
                break;
            case MAP:
                inner = new AvroType[] {of(schema.getValueType(), member == null ? null : member.ofOthers(), known)};
                for (int number = 0; member != null && number < member.names().size(); number++) {
                    String name = (String) member.names().get(number);
                    entries.put(name, of(schema.getValueType(), member.of(name), known));
                }
                break;
            default:
                break;
        }
    }

    private void addFields(List fields, Map known) {
        names = new String[fields.size()];
        keys = new byte[names.length][];
        inner = new AvroType[names.length];
        List wanted = member == null ? new ArrayList() : member.names();
        for (int number = 0; number < names.length; number++) {
            Schema.Field field = (Schema.Field) fields.get(number);
            names[number] = field.name();
            keys[number] = (",\"" + names[number] + "\":").getBytes(StandardCharsets.UTF_8);
            inner[number] = of(field.schema(), member == null ? null : member.of(names[number]), known);
            if (inner[number].member != null && !wanted.contains(names[number])) {
                wanted.add(names[number]);
            }
        }
        wanted.retainAll(Arrays.asList(names));
        order = new int[wanted.size()];
        for (int number = 0; number < order.length; number++) {
            order[number] = Arrays.asList(names).indexOf(wanted.get(number));
            isInOrder &= number == 0 || order[number - 1] < order[number];
        }
    }

    /** Reads a value, in which as many levels may lie. */
    void write(Payload in, JsonBytes out, int levels) throws Unread {
        switch (schema.getType()) {
            case RECORD:
                writeFields(in, out, Unread.deeper(levels));
                break;
            case ARRAY:
            case MAP:
                writeElements(in, out, Unread.deeper(levels));
                break;
            case UNION:
                inner[index(in.zigzag(), inner.length)].write(in, out, levels);
                break;
            case STRING:
            case BYTES:
                int length = (int) Math.min(in.zigzag(), Integer.MAX_VALUE);
                int begin = in.take(length);
                writeBytes(in.bytes, begin, begin + length, out);
                break;
            case FIXED:
                int start = in.take(schema.getFixedSize());
                writeBytes(in.bytes, start, in.at, out);
                break;
            default:
                String found = token(in);
                if (member != null) {
                    out.add(found);
                }
        }
    }

    private static int index(long index, int count) throws Unread {
        if (index < 0 || index >= count) {
            throw new Unread("undecodable");
        }
        return (int) index;
    }

    private void writeFields(Payload in, JsonBytes out, int levels) throws Unread {
        int start = out.size;
        int[] begins = new int[isInOrder ? 0 : names.length];
        int[] ends = new int[begins.length];
        for (int number = 0; number < names.length; number++) {
            int begin = out.size;
            if (inner[number].member != null) {
                out.add(keys[number]);
            }
            try {
                inner[number].write(in, out, levels);
            } catch (Unread error) {
                throw error.inside("." + names[number]);
            }
            if (!isInOrder) {
                begins[number] = begin;
                ends[number] = out.size;
            }
        }
        if (!isInOrder) {
            out.arrange(start, order, begins, ends);
        }
        if (member != null) {
            out.end(start, '{', '}');
        }
    }

    /** Reads the blocks of an array or map. */
    private void writeElements(Payload in, JsonBytes out, int levels) throws Unread {
        boolean isMap = schema.getType() == Schema.Type.MAP;
        int start = out.size;
        int number = 0;
        for (long count = in.zigzag(); count != 0; count = in.zigzag()) {
            if (count < 0) {
                in.varint();
                count = -count;
            }
            for (long left = count; left > 0; left--) {
                // Each has a byte at least: others are refused (avro_record.py).
                index(left, in.end - in.at + 1);
                String key = isMap ? key(in) : null;
                AvroType type = isMap && entries.containsKey(key) ? (AvroType) entries.get(key) : inner[0];
                try {
                    type.writeElement(key, in, out, levels);
                } catch (Unread error) {
                    throw error.inside("[" + (isMap ? key : String.valueOf(number)) + "]");
                }
                number++;
            }
        }
        if (member != null) {
            out.end(start, isMap ? '{' : '[', isMap ? '}' : ']');
        }
    }

    private void writeElement(String key, Payload in, JsonBytes out, int levels) throws Unread {
        if (member != null) {
            out.add(',');
            if (key != null) {
                out.text(key);
                out.add(':');
            }
        }
        write(in, out, levels);
    }

    private static String key(Payload in) throws Unread {
        int length = (int) Math.min(in.zigzag(), Integer.MAX_VALUE);
        int begin = in.take(length);
        return JsonBytes.string(in.bytes, begin, begin + length);
    }

    private void writeBytes(byte[] bytes, int begin, int end, JsonBytes out) throws Unread {
        if (member == null) {
            return;
        }
        if (logicalName.equals("decimal")) {
            if (end - begin > MOST_BYTES || end == begin) {
                throw new Unread("undecodable");
            }
            BigInteger digits = new BigInteger(bytes, begin, end - begin);
            out.add(new BigDecimal(digits, ((LogicalTypes.Decimal) logical).getScale()).toPlainString());
        } else if (logicalName.equals("uuid") && schema.getType() == Schema.Type.FIXED) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes, begin, end - begin);
            out.text(new UUID(buffer.getLong(), buffer.getLong()).toString());
        } else if (schema.getType() == Schema.Type.STRING || member.isText) {
            out.text(bytes, begin, end);
        } else {
            out.base64(bytes, begin, end);
        }
    }

    /** Returns the JSON of a value of fixed length or a number. */
    private String token(Payload in) throws Unread {
        switch (schema.getType()) {
            case NULL:
                return "null";
            case BOOLEAN:
                return index(in.bytes[in.take(1)], 2) == 1 ? "true" : "false";
            case FLOAT:
                float single = Float.intBitsToFloat((int) in.fixed(4));
                return Math.abs(single) <= Float.MAX_VALUE ? Float.toString(single) : "\"" + single + "\"";
            case DOUBLE:
                double number = Double.longBitsToDouble(in.fixed(8));
                return Math.abs(number) <= Double.MAX_VALUE ? Double.toString(number) : "\"" + number + "\"";
            case ENUM:
                List symbols = schema.getEnumSymbols();
                return "\"" + symbols.get(index(in.zigzag(), symbols.size())) + "\"";
            default:
                return whole(in.zigzag());
        }
    }

    /** A number as what its logical type says. */
    private String whole(long number) throws Unread {
        if (schema.getType() == Schema.Type.INT && number != (int) number) {
            throw new Unread("undecodable");
        }
        long micros = logicalName.endsWith("-millis") ? 1000 : 1;
        if (logicalName.equals("date") && Times.isDay(number)) {
            return "\"" + LocalDate.ofEpochDay(number) + "\"";
        }
        if (logicalName.startsWith("time-") && number >= 0 && number < Times.DAY / micros) {
            return "\"" + Times.clock(micros * number) + "\"";
        }
        if (logicalName.contains("timestamp-") && !logicalName.endsWith("-nanos")
            && Times.isDay(Math.floorDiv(number, Times.DAY / micros))) {
            long time = micros * number;
            String text = LocalDate.ofEpochDay(Math.floorDiv(time, Times.DAY)) + "T" + Times.clock(Math.floorMod(time, Times.DAY));
            return "\"" + text + (logicalName.startsWith("local-") ? "\"" : "Z\"");
        }
        return Long.toString(number);
    }
}
