package headrace;

import java.util.regex.Pattern;

/** A text that counts how often a pattern reads a character of it, and ends the match after a number of readings. */
public final class CountedText implements CharSequence {
    private String text = "";
    private long read;
    private long most;

    /** Returns the characters read, negative where the text matches; `most` where the match was ended. */
    public long steps(String pattern, String given, long atMost) {
        text = given;
        read = 0;
        most = atMost;
        try {
            return Pattern.compile(pattern).matcher(this).find() ? -read - 1 : read;
        } catch (IllegalStateException ended) {
            return most;
        }
    }

    public char charAt(int index) {
        if (++read >= most) {
            throw new IllegalStateException("ended");
        }
        return text.charAt(index);
    }

    public int length() {
        return text.length();
    }

    public CharSequence subSequence(int start, int end) {
        return text.substring(start, end);
    }

    public String toString() {
        return text;
    }
}
