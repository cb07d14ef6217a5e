package headrace;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.Month;
import java.time.ZoneOffset;
import java.time.chrono.IsoChronology;
import java.util.Arrays;
import java.util.Base64;
import java.util.regex.Pattern;

import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/** The value of a JSON text, number, true or false as its column has it. A rule's name stands for a fault. */
final class TypedValue {
    static final int TEXT = 0;
    static final int NUMBER = 1;
    static final int BOOLEAN = 2;
    /** More digits before or after the point than a decimal can have. */
    private static final int MOST = 39;
    /** A number of so many digits is a time in milliseconds: read as seconds it lies after the year 5000. */
    private static final int MILLIS = 12;
    private static final int LONG_DIGITS = 18;
    private static final Pattern SECONDS = Pattern.compile("\\d{4,6}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(?:\\.\\d{1,9})?");
    private static final Pattern ZONED = Pattern.compile(SECONDS.pattern() + "(?:Z|[+-]\\d\\d:\\d\\d)");

    private TypedValue() {
    }

    /** Returns the value, or the Fault, of the characters of a text (without escapes), or of a token. */
    static Object of(RecordField field, int kind, byte[] bytes, int begin, int end) {
        boolean isOfKind = kind == (field.reads <= RecordField.DATE ? TEXT : field.reads == RecordField.BOOLEAN ? BOOLEAN : NUMBER);
        Object found = isOfKind ? read(field, bytes, begin, end)
            : kind == NUMBER && field.reads == RecordField.TIME && isMillis(bytes, begin, end) ? "out_of_range" : "type";
        boolean isFault = found instanceof String;
        return isFault ? new Fault((String) found, UTF8String.fromBytes(bytes, begin, end - begin)) : found;
    }

    /** Returns the value, or the rule that it breaks. */
    static Object read(RecordField field, byte[] bytes, int begin, int end) {
        switch (field.reads) {
            case RecordField.TEXT:
                return UTF8String.fromBytes(bytes, begin, end - begin);
            case RecordField.UUID:
                return uuid(bytes, begin, end);
            case RecordField.CLOCK:
                return clock(bytes, begin, end);
            case RecordField.BASE64:
                return base64(Arrays.copyOfRange(bytes, begin, end));
            case RecordField.TIME:
                return time(bytes, begin, end);
            case RecordField.DATE:
                // Python, Arrow and pandas have no year 0.
                LocalDate date = end - begin == 10 ? date(bytes, begin) : null;
                return date == null || date.getYear() == 0 ? (Object) "format" : date;
            case RecordField.BOOLEAN:
                return Boolean.valueOf(bytes[begin] == 't');
            case RecordField.WHOLE:
                return whole(bytes, begin, end, field.precision);
            case RecordField.DECIMAL:
                return decimal(bytes, begin, end, field.precision, field.scale);
            default:
                return floating(ascii(bytes, begin, end), field.reads == RecordField.DOUBLE);
        }
    }

    private static String ascii(byte[] bytes, int begin, int end) {
        return new String(bytes, begin, end - begin, StandardCharsets.ISO_8859_1);
    }

    /** A number of the type's width, which is written as digits. */
    private static Object whole(byte[] bytes, int begin, int end, int bits) {
        int first = bytes[begin] == '-' ? begin + 1 : begin;
        long number = 0;
        for (int at = first; at < end; at++) {
            if (bytes[at] < '0' || bytes[at] > '9') {
                return "type";
            }
            number = 10 * number + bytes[at] - '0';
        }
        number = first > begin ? -number : number;
        if (end - first > LONG_DIGITS) {
            try {
                number = Long.parseLong(ascii(bytes, begin, end));
            } catch (NumberFormatException longer) {
                return "out_of_range";
            }
        }
        if (number >> bits - 1 != number >> 63) {
            return "out_of_range";
        }
        return bits == 64 ? Long.valueOf(number) : bits == 32 ? Integer.valueOf((int) number)
            : bits == 16 ? (Object) Short.valueOf((short) number) : Byte.valueOf((byte) number);
    }

    static Object decimal(byte[] bytes, int begin, int end, int precision, int scale) {
        long number = 0;
        int decimals = 0;
        boolean isShort = end - begin <= LONG_DIGITS && scale < LONG_DIGITS;
        boolean isAfterPoint = false;
        for (int at = bytes[begin] == '-' ? begin + 1 : begin; isShort && at < end; at++) {
            int digit = bytes[at] - '0';
            if (digit >= 0 && digit <= 9) {
                number = 10 * number + digit;
                decimals += isAfterPoint ? 1 : 0;
            } else {
                isShort = bytes[at] == '.';
                isAfterPoint = true;
            }
        }
        if (!isShort || decimals > scale || number >= POWERS[LONG_DIGITS - scale + decimals]) {
            return decimal(exact(ascii(bytes, begin, end)), precision, scale);
        }
        number *= POWERS[scale - decimals];
        Decimal found = new Decimal().setOrNull(bytes[begin] == '-' ? -number : number, precision, scale);
        return found == null ? (Object) "out_of_range" : found;
    }

    private static Object decimal(BigDecimal exact, int precision, int scale) {
        if (wholeDigits(exact) >= MOST) {
            return "out_of_range";
        }
        BigDecimal rounded = wholeDigits(exact) <= -MOST ? BigDecimal.ZERO : exact.setScale(scale, RoundingMode.HALF_UP);
        return rounded.precision() > precision && rounded.signum() != 0 ? "out_of_range"
            : rounded.compareTo(exact) != 0 ? (Object) "scale" : Decimal.apply(rounded, precision, scale);
    }

    private static final long[] POWERS = new long[LONG_DIGITS + 1];

    static {
        POWERS[0] = 1;
        for (int power = 1; power <= LONG_DIGITS; power++) {
            POWERS[power] = 10 * POWERS[power - 1];
        }
    }

    /** Returns a number; for one of which the exponent is too long, one that no decimal can hold either. */
    private static BigDecimal exact(String number) {
        try {
            BigDecimal exact = new BigDecimal(number);
            return exact.signum() == 0 ? BigDecimal.ZERO : exact;
        } catch (RuntimeException exponent) {
            boolean isZero = number.matches("-?[0.]+[eE].*");
            return isZero ? BigDecimal.ZERO : new BigDecimal(number.indexOf('-', 1) > 0 ? "1e-99" : "1e99");
        }
    }

    /** Returns how many digits a number has before the point; negative: the zeros after it. */
    private static long wholeDigits(BigDecimal exact) {
        return exact.signum() == 0 ? 0 : (long) exact.precision() - exact.scale();
    }

    private static boolean isMillis(byte[] bytes, int begin, int end) {
        return wholeDigits(exact(ascii(bytes, begin, end))) >= MILLIS;
    }

    /** The nearest number. The addition makes 0 of -0: no two equal values print differently. */
    private static Object floating(String number, boolean isDouble) {
        double found = isDouble ? Double.parseDouble(number) + 0.0 : Float.parseFloat(number) + 0.0f;
        return Double.isInfinite(found) ? "out_of_range" : isDouble ? (Object) Double.valueOf(found) : Float.valueOf((float) found);
    }

    private static Object uuid(byte[] bytes, int begin, int end) {
        byte[] lower = new byte[36];
        boolean isOne = end - begin == lower.length;
        for (int at = 0; isOne && at < lower.length; at++) {
            int sign = bytes[begin + at];
            int small = sign >= 'A' && sign <= 'F' ? sign + 32 : sign;
            boolean isDash = at == 8 || at == 13 || at == 18 || at == 23;
            isOne = isDash ? sign == '-' : small >= '0' && small <= '9' || small >= 'a' && small <= 'f';
            lower[at] = (byte) small;
        }
        return isOne ? (Object) UTF8String.fromBytes(lower) : "format";
    }

    /** A time of day, "08:30:00.5", without what follows microseconds and without zeros at the end of the fraction. */
    private static Object clock(byte[] bytes, int begin, int end) {
        boolean isClock = end - begin >= 8 && hasClock(bytes, begin)
            && (end - begin == 8 || isFraction(bytes, begin + 8, end));
        int last = Math.min(end, begin + 15);
        while (isClock && last > begin + 8 && (bytes[last - 1] == '0' || bytes[last - 1] == '.')) {
            last--;
        }
        return isClock ? (Object) UTF8String.fromBytes(bytes, begin, last - begin) : "format";
    }

    /** Bytes, of which no other text is the base64. */
    private static Object base64(byte[] text) {
        try {
            byte[] value = Base64.getDecoder().decode(text);
            return Arrays.equals(Base64.getEncoder().encode(value), text) ? (Object) value : "format";
        } catch (IllegalArgumentException other) {
            return "format";
        }
    }

    /** A time with a zone; most are in UTC and end with Z. */
    private static Object time(byte[] bytes, int begin, int end) {
        boolean isInUtc = end - begin >= 20 && bytes[end - 1] == 'Z' && bytes[begin + 10] == 'T'
            && hasClock(bytes, begin + 11) && (end - begin == 20 || isFraction(bytes, begin + 19, end - 1));
        LocalDate date = isInUtc ? date(bytes, begin) : null;
        return date != null ? instant(date, bytes, begin, end - 1)
            : zonedTime(new String(bytes, begin, end - begin, StandardCharsets.UTF_8));
    }

    private static Instant instant(LocalDate date, byte[] bytes, int begin, int end) {
        long minutes = 1440 * date.toEpochDay() + 60 * digits(bytes, begin + 11, 2) + digits(bytes, begin + 14, 2);
        int micros = 0;
        for (int at = begin + 20; at < begin + 26; at++) {
            micros = 10 * micros + (at < end ? bytes[at] - '0' : 0);
        }
        return Instant.ofEpochSecond(60 * minutes + digits(bytes, begin + 17, 2), 1000 * micros);
    }

    private static Object zonedTime(String text) {
        if (!ZONED.matcher(text).matches()) {
            return SECONDS.matcher(text).matches() ? "no_zone" : "bad_ts";
        }
        if (text.charAt(4) != '-') {
            return "out_of_range";
        }
        scala.Option found = DateTimeUtils.stringToTimestamp(UTF8String.fromString(text), ZoneOffset.UTC);
        return found.isEmpty() ? (Object) "bad_ts" : DateTimeUtils.microsToInstant(((Long) found.get()).longValue());
    }

    /** Whether a point and at most nine digits are between two places. */
    private static boolean isFraction(byte[] bytes, int begin, int end) {
        return bytes[begin] == '.' && end - begin >= 2 && end - begin <= 10 && digits(bytes, begin + 1, end - begin - 1) >= 0;
    }

    /** The date "2013-01-31" at a place; null if there is none. */
    private static LocalDate date(byte[] bytes, int at) {
        int year = digits(bytes, at, 4);
        int month = digits(bytes, at + 5, 2);
        int day = digits(bytes, at + 8, 2);
        boolean isDate = bytes[at + 4] == '-' && bytes[at + 7] == '-' && year >= 0 && month >= 1 && month <= 12
            && day >= 1 && day <= Month.of(month).length(IsoChronology.INSTANCE.isLeapYear(year));
        return isDate ? LocalDate.of(year, month, day) : null;
    }

    /** Whether "10:15:00" is at a place. */
    private static boolean hasClock(byte[] bytes, int at) {
        return bytes[at + 2] == ':' && bytes[at + 5] == ':' && isBelow(digits(bytes, at, 2), 24)
            && isBelow(digits(bytes, at + 3, 2), 60) && isBelow(digits(bytes, at + 6, 2), 60);
    }

    private static boolean isBelow(int number, int bound) {
        return number >= 0 && number < bound;
    }

    /** The number that so many digits make, negative if there are others among them. */
    private static int digits(byte[] bytes, int at, int count) {
        int number = 0;
        for (int place = at; place < at + count; place++) {
            int digit = bytes[place] - '0';
            if (digit < 0 || digit > 9) {
                return -1;
            }
            number = 10 * number + digit;
        }
        return number;
    }
}
