package headrace;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Reads the records of one partition and writes them into files as Arrow has columns in memory, so that the audit makes
 * no Python object of a record (adr-0002). Compiled by Janino, which knows no type parameters.
 */
public final class KafkaRecords {
    private KafkaConsumer consumer;
    private TopicPartition partition;
    private Iterator polled = Collections.emptyIterator();
    /** A record that was polled, but is not below the end of the read that met it; null otherwise. */
    private ConsumerRecord kept;
    private long position;

    private int count;
    private long[] offsets = new long[0];
    private long[] timestamps = new long[0];
    private int[] types = new int[0];
    private int[] headerEnds = new int[1];
    private final Texts keys = new Texts();
    private final Texts values = new Texts();
    private final Texts headerKeys = new Texts();
    private final Texts headerValues = new Texts();

    /** Reads nothing yet; the records from offset `start` on are next. */
    public void open(Map options, String topic, int number, long start) {
        consumer = new KafkaConsumer(options);
        partition = new TopicPartition(topic, number);
        consumer.assign(Collections.singletonList(partition));
        consumer.seek(partition, start);
        position = start;
    }

    /**
     * Writes the next records below `end` into a file: up to `most` of them, or somewhat more than `mostBytes`. Returns
     * the offset before which all are read, and the sizes of the columns. The offset is lower than `end` also when none
     * came for a fifth of a second.
     */
    public String read(String file, long end, int most, int mostBytes) throws IOException {
        clear(most);
        boolean isWaiting = true;
        while (isWaiting && position < end && count < most && held() < mostBytes) {
            if (kept == null && polled.hasNext()) {
                kept = (ConsumerRecord) polled.next();
            }
            if (kept == null) {
                isWaiting = poll();
            } else if (kept.offset() >= end) {
                position = end;
            } else {
                add(kept);
                kept = null;
            }
        }
        write(file);
        return Math.min(position, end) + " " + count + " " + keys.size() + " " + values.size() + " "
                + headerKeys.count() + " " + headerKeys.size() + " " + headerValues.size();
    }

    /** Bytes of the columns whose size the number of records does not bound: of a header also where it ends. */
    private int held() {
        return keys.size() + values.size() + headerKeys.size() + headerValues.size() + 8 * headerKeys.count();
    }

    public void close() {
        if (consumer != null) {
            consumer.close(Duration.ZERO);
        }
    }

    private boolean poll() {
        List records = consumer.poll(Duration.ofMillis(200)).records(partition);
        polled = records.iterator();
        long before = position;
        if (records.isEmpty()) {
            // It also passes transaction markers, and what was aborted or compacted.
            position = Math.max(position, consumer.position(partition));
        }
        return !records.isEmpty() || position > before;
    }

    private void add(ConsumerRecord record) {
        position = record.offset() + 1;
        offsets[count] = record.offset();
        timestamps[count] = record.timestamp();
        types[count] = record.timestampType().id;
        keys.add((ByteBuffer) record.key());
        values.add((ByteBuffer) record.value());
        Header[] headers = record.headers().toArray();
        for (int i = 0; i < headers.length; i++) {
            headerKeys.add(ByteBuffer.wrap(headers[i].key().getBytes(StandardCharsets.UTF_8)));
            byte[] value = headers[i].value();
            headerValues.add(value == null ? null : ByteBuffer.wrap(value));
        }
        count++;
        headerEnds[count] = headerKeys.count();
    }

    private void clear(int most) {
        count = 0;
        if (offsets.length < most) {
            offsets = new long[most];
            timestamps = new long[most];
            types = new int[most];
            headerEnds = new int[most + 1];
        }
        keys.clear();
        values.clear();
        headerKeys.clear();
        headerValues.clear();
    }

    private void write(String file) throws IOException {
        OutputStream out = new FileOutputStream(file);
        try {
            write(out, offsets);
            write(out, timestamps);
            write(out, types, count);
            write(out, headerEnds, count + 1);
            keys.write(out);
            values.write(out);
            headerKeys.write(out);
            headerValues.write(out);
        } finally {
            out.close();
        }
    }

    private void write(OutputStream out, long[] numbers) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(numbers, 0, count);
        out.write(bytes.array());
    }

    private static void write(OutputStream out, int[] numbers, int length) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(padded(4 * length)).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(numbers, 0, length);
        out.write(bytes.array());
    }

    /** Columns begin at multiples of eight bytes. */
    private static int padded(int size) {
        return (size + 7) / 8 * 8;
    }

    /** A column of byte strings: bits that say which are not null, ends, bytes. */
    private static final class Texts {
        private int count;
        private byte[] valid = new byte[1024];
        private int[] ends = new int[1024];
        private byte[] bytes = new byte[65536];

        int count() {
            return count;
        }

        int size() {
            return ends[count];
        }

        void add(ByteBuffer text) {
            if (count + 1 == ends.length) {
                ends = Arrays.copyOf(ends, 2 * ends.length);
                valid = Arrays.copyOf(valid, 2 * valid.length);
            }
            int end = ends[count];
            if (text != null) {
                int length = text.remaining();
                if (end + length > bytes.length) {
                    bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, end + length));
                }
                text.get(bytes, end, length);
                valid[count / 8] |= (byte) (1 << (count % 8));
                end += length;
            }
            count++;
            ends[count] = end;
        }

        void clear() {
            Arrays.fill(valid, 0, (count + 7) / 8, (byte) 0);
            count = 0;
        }

        void write(OutputStream out) throws IOException {
            int bits = padded((count + 7) / 8);
            out.write(Arrays.copyOf(valid, Math.max(bits, valid.length)), 0, bits);
            KafkaRecords.write(out, ends, count + 1);
            out.write(bytes, 0, size());
            out.write(new byte[padded(size()) - size()]);
        }
    }
}
