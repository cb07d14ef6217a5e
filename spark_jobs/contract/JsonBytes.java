package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.unsafe.types.UTF8String;

/** JSON in UTF-8, while it is written. */
final class JsonBytes {
    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
    private byte[] bytes = new byte[1024];
    int size;

    void add(int sign) {
        room(1);
        bytes[size++] = (byte) sign;
    }

    void add(byte[] more) {
        add(more, 0, more.length);
    }

    void add(byte[] more, int begin, int end) {
        room(end - begin);
        System.arraycopy(more, begin, bytes, size, end - begin);
        size += end - begin;
    }

    /** Adds characters as they are. */
    void add(String text) {
        add(text.getBytes(StandardCharsets.UTF_8));
    }

    void text(String text) {
        byte[] found = text.getBytes(StandardCharsets.UTF_8);
        quoted(found, 0, found.length);
    }

    /** Adds bytes as a text. */
    void text(byte[] found, int begin, int end) throws Unread {
        if (!UTF8String.fromBytes(found, begin, end - begin).isValid()) {
            throw new Unread("bad_utf8");
        }
        quoted(found, begin, end);
    }

    void base64(byte[] found, int begin, int end) {
        add('"');
        add(Base64.getEncoder().encode(Arrays.copyOfRange(found, begin, end)));
        add('"');
    }

    private void quoted(byte[] found, int begin, int end) {
        room(6 * (end - begin) + 2);
        bytes[size++] = '"';
        for (int at = begin; at < end; at++) {
            byte sign = found[at];
            if (sign >= 0 && sign < 0x20) {
                add("\\u00");
                bytes[size++] = HEX[sign >> 4];
                bytes[size++] = HEX[sign & 15];
            } else {
                if (sign == '"' || sign == '\\') {
                    bytes[size++] = '\\';
                }
                bytes[size++] = sign;
            }
        }
        bytes[size++] = '"';
    }

    /** Ends an object or array that began at a place, where its first comma is. */
    void end(int begin, int open, int close) {
        if (size == begin) {
            add(open);
        } else {
            bytes[begin] = (byte) open;
        }
        add(close);
    }

    /** Gives the parts from a place on an order; `begins`, `ends`: where each of them is. */
    void arrange(int start, int[] order, int[] begins, int[] ends) {
        byte[] parts = Arrays.copyOfRange(bytes, start, size);
        size = start;
        for (int number = 0; number < order.length; number++) {
            add(parts, begins[order[number]] - start, ends[order[number]] - start);
        }
    }

    /** Returns bytes as a text. */
    static String string(byte[] found, int begin, int end) throws Unread {
        if (!UTF8String.fromBytes(found, begin, end - begin).isValid()) {
            throw new Unread("bad_utf8");
        }
        return new String(found, begin, end - begin, StandardCharsets.UTF_8);
    }

    byte[] found() {
        return Arrays.copyOf(bytes, size);
    }

    private void room(int more) {
        if (size + more > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, size + more));
        }
    }
}

/** What a contract reads of a value of another format than JSON; null stands for one that is skipped. */
final class ReadMember implements Serializable {
    private static final ReadMember WHOLE = new ReadMember();
    private final Map members = new LinkedHashMap();
    private ReadMember element;
    private boolean isWhole;
    /** Whether bytes are the text that they encode; otherwise they are base64. */
    boolean isText;

    /** Has a column read the value to which a path leads: all that it has. null in a path: each element. */
    void read(List path, boolean isText) {
        if (path.isEmpty()) {
            isWhole = true;
            this.isText = isText;
        } else {
            inner((String) path.get(0)).read(path.subList(1, path.size()), isText);
        }
    }

    private ReadMember inner(String name) {
        ReadMember known = name == null ? element : (ReadMember) members.get(name);
        ReadMember inner = known == null ? new ReadMember() : known;
        if (name == null) {
            element = inner;
        } else {
            members.put(name, inner);
        }
        return inner;
    }

    /** Returns what is read of a member. */
    ReadMember of(String name) {
        ReadMember known = (ReadMember) members.get(name);
        return known == null ? ofOthers() : known;
    }

    /** Returns what is read of a member that has no name of its own here. */
    ReadMember ofOthers() {
        return element != null ? element : isWhole || this == WHOLE ? WHOLE : null;
    }

    /** Returns what is read of an element of an array. An array in an object's place is read, to be rejected. */
    ReadMember ofElements() {
        return element == null ? WHOLE : element;
    }

    /** Returns the names that are read, in the contract's order. */
    List names() {
        return new ArrayList(members.keySet());
    }
}

/** The bytes of a payload, and the place up to which they are read. */
final class Payload {
    final byte[] bytes;
    final int end;
    int at;

    Payload(byte[] bytes, int begin, int end) {
        this.bytes = bytes;
        at = begin;
        this.end = end;
    }

    /** Returns the place where so many bytes begin, which are read. */
    int take(long length) throws Unread {
        if (length < 0 || length > end - at) {
            throw new Unread("undecodable");
        }
        at += (int) length;
        return at - (int) length;
    }

    long varint() throws Unread {
        long value = 0;
        for (int shift = 0; shift < Long.SIZE; shift += 7) {
            byte part = bytes[take(1)];
            value |= (long) (part & 0x7f) << shift;
            if (part >= 0) {
                return value;
            }
        }
        throw new Unread("undecodable");
    }

    /** A number of which the sign is the last bit. */
    long zigzag() throws Unread {
        long value = varint();
        return value >>> 1 ^ -(value & 1);
    }

    /** A number of fixed length, the last byte first. */
    long fixed(int length) throws Unread {
        int begin = take(length);
        long value = 0;
        for (int number = length - 1; number >= 0; number--) {
            value = value << 8 | bytes[begin + number] & 0xff;
        }
        return value;
    }
}

/** A payload has no JSON. What catches it on the way adds where that is. */
final class Unread extends Exception {
    private static final int SHOWN = 64;
    final String rule;
    private final String why;
    private String path = "";

    Unread(String rule) {
        this(rule, "");
    }

    Unread(String rule, String why) {
        super(rule, null, false, false);
        this.rule = rule;
        this.why = why;
    }

    /** Returns how many levels may lie inside of one that is entered. */
    static int deeper(int levels) throws Unread {
        if (levels == 0) {
            throw new Unread("depth");
        }
        return levels - 1;
    }

    Unread inside(String place) {
        String longer = place + path;
        path = longer.substring(0, Math.min(SHOWN, longer.length()));
        return this;
    }

    /** Returns what is known of the fault, to follow the name of the schema. */
    String where() {
        return why + (path.isEmpty() ? "" : ", at $" + path);
    }
}

/** Dates and times of day as texts. */
final class Times {
    private static final long SECOND = 1000000L;
    static final long DAY = 86400 * SECOND;
    private static final long FIRST_DAY = -719162;
    private static final long LAST_DAY = 2932896;

    private Times() {
    }

    /** Whether a day is of the years 1 to 9999, in which the calendars of all readers agree. */
    static boolean isDay(long day) {
        return day >= FIRST_DAY && day <= LAST_DAY;
    }

    /** A time of day, in microseconds, with all its digits. */
    static String clock(long micros) {
        long[] parts = {micros / (3600 * SECOND), micros / (60 * SECOND) % 60, micros / SECOND % 60, micros % SECOND};
        StringBuilder text = new StringBuilder(15);
        for (int number = 0; number < 4; number++) {
            String digits = Long.toString(parts[number]);
            text.append(number == 0 ? "" : number < 3 ? ":" : ".");
            text.append("000000", 0, (number < 3 ? 2 : 6) - digits.length()).append(digits);
        }
        return text.toString();
    }
}
