package headrace;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A pass over the bytes of a record in plain form, without a Java string. All places are offsets in the record, and never
 * beyond its last byte, `}`, which ends every scan.
 */
final class PlainScan extends Reading {
    private final byte[] record;
    private final int last;
    private final int maxDigits;
    private int at = 1;

    PlainScan(byte[] record, long arrived, int maxDigits) {
        super(arrived);
        this.record = record;
        this.last = record.length - 1;
        this.maxDigits = maxDigits;
    }

    /** Returns what was read of the record; null if it is not in plain form. */
    Object[] found(RecordField root) {
        Object[] found = new Object[root.place.slots];
        boolean isPlain = last > 0 && record[0] == '{' && record[last] == '}' && readMembers(root.place, found) && at == last
            && (isAscii() || UTF8String.fromBytes(record).isValid());
        return isPlain ? found : null;
    }

    private boolean isAscii() {
        int place = 0;
        long signs = 0;
        for (; place + 8 <= record.length; place += 8) {
            signs |= Platform.getLong(record, Platform.BYTE_ARRAY_OFFSET + place);
        }
        for (; place < record.length; place++) {
            signs |= record[place];
        }
        return (signs & 0x8080808080808080L) == 0;
    }

    /** Reads the members of an object, from its first one on, in the contract's order. */
    private boolean readMembers(Place owner, Object[] found) {
        Place[] members = owner.members;
        int begin = at;
        for (int number = 0; number < members.length; number++) {
            int key = at == begin ? afterSpace(at) : record[at] == ',' ? afterSpace(at + 1) : -1;
            if (key < 0) {
                break;
            }
            if (has(key, members[number].key)) {
                at = afterSpace(key + members[number].key.length);
                if (!read(members[number], found)) {
                    return false;
                }
            }
        }
        return true;
    }

    private int afterSpace(int place) {
        return record[place] == ' ' ? place + 1 : place;
    }

    /** Reads the value at this place into a row. */
    private boolean read(Place place, Object[] found) {
        if (record[at] == 'n') {
            return skip(NULL);
        }
        if (place.kept.length > 0) {
            return false;
        }
        if (place.form > RecordField.VARIANT) {
            return readScalar(place, found);
        }
        return place.form == RecordField.ARRAY ? record[at] == '[' && readElements(place.columns[0], found)
            : record[at] == '{' && (place.form == RecordField.OBJECT ? readObject(place, found)
                : readEntries(place.columns[0], found));
    }

    private boolean readObject(Place place, Object[] found) {
        at++;
        putObject(place, found);
        return readMembers(place, found) && end('}');
    }

    private boolean readElements(RecordField field, Object[] found) {
        List elements = new ArrayList();
        RecordField item = field.columns[0];
        for (at++; record[at] != ']';) {
            Object[] inner = new Object[item.place.slots];
            if (elements.size() == field.longest || !next(elements.isEmpty()) || !read(item.place, inner)) {
                return false;
            }
            elements.add(value(item, inner));
        }
        putAll(field, found, elements, elements);
        return end(']');
    }

    private boolean readEntries(RecordField field, Object[] found) {
        Map entries = new LinkedHashMap();
        RecordField item = field.columns[0];
        for (at++; record[at] != '}';) {
            Object[] inner = new Object[item.place.slots];
            if (entries.size() == field.longest || !next(entries.isEmpty()) || record[at] != '"') {
                return false;
            }
            int end = endOfText(at + 1);
            UTF8String key = UTF8String.fromBytes(record, at + 1, end - at - 1);
            if (record[end] != '"' || record[end + 1] != ':' || entries.containsKey(key)) {
                return false;
            }
            at = afterSpace(end + 2);
            if (!read(item.place, inner)) {
                return false;
            }
            entries.put(key, value(item, inner));
        }
        putAll(field, found, entries, entries.values());
        return end('}');
    }

    /** Goes to the next element. */
    private boolean next(boolean isFirst) {
        if (!isFirst && record[at] != ',') {
            return false;
        }
        at = afterSpace(isFirst ? at : at + 1);
        return true;
    }

    private boolean end(char sign) {
        return record[at] == sign && at++ < last;
    }

    private boolean readScalar(Place place, Object[] found) {
        int begin = at;
        if (record[at] == '"') {
            int end = endOfText(at + 1);
            at = end + 1;
            if (record[end] != '"') {
                return false;
            }
            put(place, found, TypedValue.TEXT, record, begin + 1, end);
            return true;
        }
        boolean isBoolean = record[at] == 't' || record[at] == 'f';
        if (isBoolean ? !skip(record[at] == 't' ? TRUE : FALSE) : !skipNumber()) {
            return false;
        }
        put(place, found, isBoolean ? TypedValue.BOOLEAN : TypedValue.NUMBER, record, begin, at);
        return true;
    }

    private static final byte[] NULL = {'n', 'u', 'l', 'l'};
    private static final byte[] TRUE = {'t', 'r', 'u', 'e'};
    private static final byte[] FALSE = {'f', 'a', 'l', 's', 'e'};

    private boolean skip(byte[] literal) {
        boolean isThere = has(at, literal);
        at += isThere ? literal.length : 0;
        return isThere;
    }

    /** Whether the bytes are at a place, and the record goes on after them. */
    private boolean has(int place, byte[] bytes) {
        if (place + bytes.length > last) {
            return false;
        }
        for (int number = 0; number < bytes.length; number++) {
            if (record[place + number] != bytes[number]) {
                return false;
            }
        }
        return true;
    }

    /** The end of the characters that need no escape. */
    private int endOfText(int place) {
        int end = place;
        while (IS_PLAIN[record[end] & 0xff] && end < last) {
            end++;
        }
        return end;
    }

    private static final boolean[] IS_PLAIN = new boolean[256];

    static {
        for (int character = 0x20; character < 256; character++) {
            IS_PLAIN[character] = character != '"' && character != '\\' && character != 0x7f;
        }
    }

    private boolean skipNumber() {
        int begin = at;
        int first = record[at] == '-' ? at + 1 : at;
        int end = endOfDigits(first);
        boolean isNumber = end > first && (record[first] != '0' || end == first + 1);
        if (isNumber && record[end] == '.') {
            isNumber = endOfDigits(end + 1) > end + 1;
            end = endOfDigits(end + 1);
        }
        if (isNumber && (record[end] | 0x20) == 'e') {
            int exponent = record[end + 1] == '-' || record[end + 1] == '+' ? end + 2 : end + 1;
            end = endOfDigits(exponent);
            isNumber = end > exponent;
        }
        at = end;
        return isNumber && end - begin <= maxDigits;
    }

    private int endOfDigits(int place) {
        int end = place;
        while (record[end] >= '0' && record[end] <= '9') {
            end++;
        }
        return end;
    }
}
