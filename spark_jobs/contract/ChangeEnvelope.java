package headrace;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.util.Arrays;

import org.apache.spark.sql.api.java.UDF1;

/**
 * A function from Debezium's JSON to the change alone, with the row under `after` whatever happened to it (envelopes.py).
 * Bytes that are no such record are returned as they are: whoever reads them finds out what they are.
 * Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class ChangeEnvelope implements UDF1, Serializable {
    public Object call(Object value) {
        byte[] record = (byte[]) value;
        if (record == null) {
            return null;
        }
        Member payload = new Member("payload");
        Member schema = new Member("schema");
        if (found(record, new Member[] {payload, schema}) && payload.isThere() && schema.isThere()) {
            if (payload.isNull(record)) {
                return null;
            }
            record = Arrays.copyOfRange(record, payload.value, payload.end);
        }
        Member before = new Member("before");
        Member after = new Member("after");
        if (!found(record, new Member[] {before, after}) || !before.isThere() || before.isNull(record)) {
            return record;
        }
        return after.isThere() && !after.isNull(record) ? record : renamed(record, before, after);
    }

    /** Notes where these members of an object are; false unless the bytes are one object with each of them at most once. */
    private static boolean found(byte[] text, Member[] members) {
        int at = space(text, 0);
        if (at >= text.length || text[at] != '{') {
            return false;
        }
        at = space(text, at + 1);
        while (at < text.length && text[at] == '"') {
            int name = at;
            int end = string(text, at);
            at = space(text, end);
            if (at >= text.length || text[at] != ':') {
                return false;
            }
            int begin = space(text, at + 1);
            at = value(text, begin);
            for (int i = 0; i < members.length; i++) {
                if (members[i].isNamed(text, name, end) && !members[i].note(name, begin, at)) {
                    return false;
                }
            }
            at = space(text, at);
            if (at < text.length && text[at] == ',') {
                at = space(text, at + 1);
            }
        }
        return at < text.length && text[at] == '}' && space(text, at + 1) == text.length;
    }

    /** Exchanges the names of two members; the second one may be missing. */
    private static byte[] renamed(byte[] record, Member before, Member after) {
        Member first = !after.isThere() || before.name < after.name ? before : after;
        Member second = first == before ? after : before;
        ByteArrayOutputStream out = new ByteArrayOutputStream(record.length);
        int at = first.copyRenamed(record, 0, second, out);
        if (second.isThere()) {
            at = second.copyRenamed(record, at, first, out);
        }
        out.write(record, at, record.length - at);
        return out.toByteArray();
    }

    private static int space(byte[] text, int at) {
        while (at < text.length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) {
            at++;
        }
        return at;
    }

    /** Returns the place after a string that begins at a quote. */
    private static int string(byte[] text, int at) {
        for (at++; at < text.length && text[at] != '"'; at++) {
            if (text[at] == '\\') {
                at++;
            }
        }
        return Math.min(at + 1, text.length);
    }

    /** Returns the place after a value, or after what is taken for one. */
    private static int value(byte[] text, int at) {
        int depth = 0;
        while (at < text.length) {
            byte sign = text[at];
            if (sign == '"') {
                at = string(text, at);
                if (depth == 0) {
                    return at;
                }
                continue;
            }
            if (depth == 0 && (sign == ',' || sign == '}' || sign == ']')) {
                return at;
            }
            depth += sign == '{' || sign == '[' ? 1 : sign == '}' || sign == ']' ? -1 : 0;
            at++;
            if (depth == 0 && (sign == '}' || sign == ']')) {
                return at;
            }
        }
        return at;
    }
}

/** Where a member of an object is: its name, and the beginning and end of its value. */
final class Member {
    private final byte[] quoted;
    int name = -1;
    int value;
    int end;

    Member(String text) {
        quoted = ('"' + text + '"').getBytes();
    }

    boolean isThere() {
        return name >= 0;
    }

    boolean isNamed(byte[] text, int from, int to) {
        return to - from == quoted.length && Arrays.equals(Arrays.copyOfRange(text, from, to), quoted);
    }

    /** Returns whether it was not noted before. */
    boolean note(int from, int begin, int after) {
        boolean isNew = name < 0;
        name = from;
        value = begin;
        end = after;
        return isNew;
    }

    boolean isNull(byte[] text) {
        return text[value] == 'n';
    }

    /** Writes what lies between a place and this member, and the other's name; returns the place after this name. */
    int copyRenamed(byte[] text, int at, Member other, ByteArrayOutputStream out) {
        out.write(text, at, name - at);
        out.write(other.quoted, 0, other.quoted.length);
        return name + quoted.length;
    }
}
