package headrace;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;

/** A function from a line of RFC 4180 to why it is none, and to the JSON object of its fields (payload_texts.py). */
public final class CsvLine implements UDF1, Serializable {
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");
    private final List columns = new ArrayList();
    private char delimiter;
    private char quote;
    private String nullText;
    private int fields;

    public void form(String delimiter, String quote, String nullText, int fields) {
        this.delimiter = delimiter.charAt(0);
        this.quote = quote.charAt(0);
        this.nullText = nullText;
        this.fields = fields;
    }

    /** Adds a column: its member of the object, the number of its field, and what JSON it is: text, number or boolean. */
    public void add(String member, int field, String kind) {
        columns.add(new Object[] {member, Integer.valueOf(field), kind});
    }

    /** Returns a rule and its detail, null where the line is right; then the object. */
    public Object call(Object value) {
        byte[] line = (byte[]) value;
        if (line == null) {
            return RowFactory.create(new Object[3]);
        }
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(line)).toString();
        } catch (CharacterCodingException error) {
            return RowFactory.create(new Object[] {"bad_utf8", null, null});
        }
        int end = text.endsWith("\r\n") ? 2 : text.endsWith("\n") ? 1 : 0;
        String[] found = new String[fields];
        String fault = split(text.substring(0, text.length() - end), found);
        if (fault != null) {
            int space = fault.indexOf(' ');
            return RowFactory.create(new Object[] {fault.substring(0, space), fault.substring(space + 1), null});
        }
        return RowFactory.create(new Object[] {null, null, json(found)});
    }

    /** Fills in the fields; returns a rule and its detail, or null. */
    private String split(String line, String[] found) {
        int count = 0;
        int at = 0;
        while (true) {
            boolean isQuoted = at < line.length() && line.charAt(at) == quote;
            StringBuilder field = new StringBuilder();
            at = isQuoted ? quoted(line, at + 1, field) : plain(line, at, field);
            String place = " field " + (count + 1);
            if (at < 0) {
                return "csv_quote" + place + " does not end";
            }
            if (count < fields) {
                found[count] = !isQuoted && field.toString().equals(nullText) ? null : field.toString();
            }
            count++;
            if (at == line.length()) {
                return count == fields ? null : "field_count " + count + ", not " + fields;
            }
            char next = line.charAt(at++);
            if (next != delimiter) {
                boolean isBreak = !isQuoted && next != quote;
                return isBreak ? "line_break" + place : "csv_quote" + place + (isQuoted ? " goes on" : " has a quote inside");
            }
        }
    }

    /** Reads up to what cannot be in a field without quotes; returns where that is. */
    private int plain(String line, int start, StringBuilder field) {
        int at = start;
        while (at < line.length() && "\r\n".indexOf(line.charAt(at)) < 0 && line.charAt(at) != quote
            && line.charAt(at) != delimiter) {
            at++;
        }
        field.append(line, start, at);
        return at;
    }

    /** Returns the place after the closing quote, or -1. */
    private int quoted(String line, int start, StringBuilder field) {
        int at = start;
        while (true) {
            int end = line.indexOf(quote, at);
            if (end < 0) {
                return -1;
            }
            field.append(line, at, end);
            if (end + 1 >= line.length() || line.charAt(end + 1) != quote) {
                return end + 1;
            }
            field.append(quote);
            at = end + 2;
        }
    }

    private byte[] json(String[] found) {
        JsonBytes object = new JsonBytes();
        for (int number = 0; number < columns.size(); number++) {
            Object[] column = (Object[]) columns.get(number);
            String field = found[((Integer) column[1]).intValue()];
            object.add(',');
            object.text((String) column[0]);
            object.add(':');
            boolean isBare = field == null || column[2].equals("number") && NUMBER.matcher(field).matches()
                || column[2].equals("boolean") && (field.equals("true") || field.equals("false"));
            if (isBare) {
                object.add(String.valueOf(field));
            } else {
                object.text(field);
            }
        }
        object.end(0, '{', '}');
        return object.found();
    }
}
