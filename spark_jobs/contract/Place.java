package headrace;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.core.JsonToken;

/** A place in the record, or in an element: which columns read the value there, and the places in it. */
final class Place implements Serializable {
    /** Its name in the record with quotes and a colon. */
    byte[] key;
    /** What most columns read here: an object, an array or map, or one value; VARIANT while none does. */
    int form = RecordField.VARIANT;
    /** The columns that read the value as their type. */
    RecordField[] columns = {};
    /** The columns that keep it as it is written. */
    RecordField[] kept = {};
    /** The members that are read of an object, in the contract's order. */
    Place[] members = {};
    /** The record or element that it lies in. */
    private final Place scope;
    /** How many columns read of a record or an element, each in a slot of its own. */
    int slots;
    private final Map byName = new HashMap();

    /** `around` is null for the record, and for an element. */
    Place(Place around) {
        scope = around == null ? this : around.scope;
    }

    /** Returns where a path leads to; without one: to each element. */
    Place at(List path) {
        Place place = path.isEmpty() ? new Place(null) : this;
        for (int number = 0; number < path.size(); number++) {
            place = place.memberOf((String) path.get(number));
        }
        return place;
    }

    private Place memberOf(String name) {
        if (member(name) == null) {
            Place place = new Place(this);
            place.key = ("\"" + name + "\":").getBytes(StandardCharsets.UTF_8);
            form = RecordField.OBJECT;
            members = (Place[]) Arrays.copyOf(members, members.length + 1);
            members[members.length - 1] = place;
            byName.put(name, place);
        }
        return member(name);
    }

    Place member(String name) {
        return (Place) byName.get(name);
    }

    /** Adds a column that reads the value. */
    void add(RecordField column) {
        column.slot = scope.slots++;
        if (column.reads == RecordField.VARIANT) {
            kept = RecordField.with(kept, column);
        } else {
            form = column.reads;
            columns = RecordField.with(columns, column);
        }
    }

    /** Whether what is read in it is read of a value that begins so. */
    boolean isIn(JsonToken token) {
        return form == RecordField.ARRAY ? token == JsonToken.START_ARRAY
            : form <= RecordField.MAP && token == JsonToken.START_OBJECT;
    }

    /** Gives a fault to all columns that read the value, or inside of it. */
    void block(Object[] found, Fault fault) {
        put(columns, found, fault);
        for (int number = 0; number < members.length; number++) {
            members[number].block(found, fault);
            put(members[number].kept, found, fault);
        }
    }

    static void put(RecordField[] columns, Object[] found, Object value) {
        for (int number = 0; number < columns.length; number++) {
            found[columns[number].slot] = value;
        }
    }
}
