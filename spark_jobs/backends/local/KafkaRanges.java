package headrace;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads ranges of offsets and writes each partition's records as an Arrow file with the columns of Spark's Kafka source
 * (kafka_ranges.py). A partition has a consumer, which stays where the last range ended. Compiled by Janino: no generics
 * in interfaces, no lambdas.
 *
 * A time outside [firstMs, lastMs] is replaced by the microsecond before or after them, and its number is added as the
 * last header (layers/adr-0019).
 */
public final class KafkaRanges {
    private Map options;
    private String topic;
    private long pollTimeoutMs;
    private long firstMs;
    private long lastMs;
    private String timeHeader;
    private ExecutorService pool;
    private ExecutorCompletionService ended;
    private final Map readers = new HashMap();
    private final List running = new ArrayList();

    /** Reads nothing yet. A range fails when its partition returns nothing for `pollTimeoutMs`. */
    public void open(
            Map consumerOptions, String topicName, long timeoutMs, long first, long last, String header) {
        options = consumerOptions;
        topic = topicName;
        pollTimeoutMs = timeoutMs;
        firstMs = first;
        lastMs = last;
        timeHeader = header;
        pool = Executors.newFixedThreadPool(Runtime.getRuntime().availableProcessors());
        ended = new ExecutorCompletionService(pool);
    }

    /** Begins to read the records of a partition from offset `start` to below `end` into a file, if there are any. */
    public void begin(int partition, long start, long end, String file) {
        Integer number = Integer.valueOf(partition);
        PartitionReader reader = (PartitionReader) readers.get(number);
        if (reader == null) {
            Calendar calendar = new Calendar(firstMs, lastMs, timeHeader);
            TopicPartition place = new TopicPartition(topic, partition);
            reader = new PartitionReader(new KafkaConsumer(options), place, pollTimeoutMs, calendar);
            readers.put(number, reader);
        }
        reader.assign(start, end, new File(file));
        running.add(ended.submit(reader));
    }

    /** Waits for what has begun; returns whether all of it has ended. Throws what failed first. */
    public boolean awaitAll(long ms) throws Exception {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        while (!running.isEmpty()) {
            Future next = ended.poll(Math.max(0, until - System.nanoTime()), TimeUnit.NANOSECONDS);
            if (next == null) {
                return false;
            }
            running.remove(next);
            try {
                next.get();
            } catch (ExecutionException failed) {
                throw failed.getCause() instanceof Exception ? (Exception) failed.getCause() : failed;
            }
        }
        return true;
    }

    /** Ends the consumers, which may be reading; a range that begins later gets a new one. */
    public void reset() throws InterruptedException {
        for (Iterator all = readers.values().iterator(); all.hasNext();) {
            ((PartitionReader) all.next()).cancel();
        }
        for (Iterator all = running.iterator(); all.hasNext();) {
            ((Future) all.next()).cancel(false);
        }
        for (Iterator all = readers.values().iterator(); all.hasNext();) {
            ((PartitionReader) all.next()).close();
        }
        readers.clear();
        running.clear();
        ended = new ExecutorCompletionService(pool);
    }

    public void close() throws InterruptedException {
        try {
            reset();
        } finally {
            pool.shutdown();
        }
    }
}

/** The times that bronze holds, and the header that has the number of any other. */
final class Calendar {
    private final long firstMs;
    private final long lastMs;
    private final UTF8String header;

    Calendar(long firstMs, long lastMs, String header) {
        this.firstMs = firstMs;
        this.lastMs = lastMs;
        this.header = UTF8String.fromString(header);
    }

    boolean has(long ms) {
        return ms >= firstMs && ms <= lastMs;
    }

    /** The time in microseconds. */
    long micros(long ms) {
        return ms < firstMs ? firstMs * 1000 - 1 : ms > lastMs ? lastMs * 1000 + 1 : ms * 1000;
    }

    UTF8String header() {
        return header;
    }
}

/** One partition: a range after the other. */
final class PartitionReader extends ArrowFile implements Callable, Iterator {
    private static final StructType SCHEMA = new StructType()
        .add("key", DataTypes.BinaryType).add("value", DataTypes.BinaryType).add("topic", DataTypes.StringType)
        .add("partition", DataTypes.IntegerType).add("offset", DataTypes.LongType)
        .add("timestamp", DataTypes.TimestampType).add("timestampType", DataTypes.IntegerType)
        .add("headers", DataTypes.createArrayType(
            new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType)));
    private static final Duration POLL = Duration.ofMillis(100);

    private final KafkaConsumer consumer;
    private final TopicPartition partition;
    private final UTF8String topic;
    private final long pollTimeoutMs;
    private final Calendar calendar;
    private Iterator polled = Collections.emptyIterator();
    private ConsumerRecord pending;
    private long position = -1;
    private long start;
    private long end;
    private File file;
    private volatile boolean isCancelled;
    private boolean isClosed;

    PartitionReader(KafkaConsumer consumer, TopicPartition partition, long pollTimeoutMs, Calendar calendar) {
        this.consumer = consumer;
        this.partition = partition;
        topic = UTF8String.fromString(partition.topic());
        this.pollTimeoutMs = pollTimeoutMs;
        this.calendar = calendar;
        consumer.assign(Collections.singletonList(partition));
    }

    void assign(long first, long until, File target) {
        start = first;
        end = until;
        file = target;
    }

    /** Ends a range that is being read, after its next record or poll. */
    void cancel() {
        isCancelled = true;
    }

    /** Waits for a range that is being read. Only its own thread may use a consumer, so none begins afterwards. */
    synchronized void close() {
        isClosed = true;
        try {
            consumer.close(Duration.ZERO);
        } catch (RuntimeException unclosed) {
            // What it holds is of this process alone, and nothing reads it any more.
        }
    }

    public synchronized Object call() throws Exception {
        if (isClosed) {
            throw new CancellationException();
        }
        if (position != start) {
            consumer.seek(partition, start);
            polled = Collections.emptyIterator();
            pending = null;
            position = start;
        }
        advance();
        if (hasNext()) {
            write(SCHEMA, this, file);
        }
        position = end;
        return null;
    }

    public boolean hasNext() {
        return pending != null && pending.offset() < end;
    }

    /** Returns the row of the next record, with the columns of Spark's source. */
    public Object next() {
        ConsumerRecord record = pending;
        position = record.offset() + 1;
        pending = null;
        advance();
        return row(record);
    }

    private InternalRow row(ConsumerRecord record) {
        long ms = record.timestamp();
        List headers = new ArrayList();
        for (Iterator given = record.headers().iterator(); given.hasNext();) {
            Header each = (Header) given.next();
            headers.add(new GenericInternalRow(new Object[] {UTF8String.fromString(each.key()), each.value()}));
        }
        if (!calendar.has(ms)) {
            headers.add(new GenericInternalRow(new Object[] {calendar.header(), Long.toString(ms).getBytes(StandardCharsets.UTF_8)}));
        }
        return new GenericInternalRow(new Object[] {
            record.key(), record.value(), topic, Integer.valueOf(record.partition()), Long.valueOf(record.offset()),
            Long.valueOf(calendar.micros(ms)), Integer.valueOf(record.timestampType().id),
            headers.isEmpty() ? null : new GenericArrayData(headers.toArray())});
    }

    int add(InternalRow row, ArrowWriter batch) {
        try {
            batch.write(row);
        } catch (RuntimeException failed) {
            String where = partition + ", offset " + row.getLong(4) + ": the record cannot be stored: ";
            IllegalStateException placed = new IllegalStateException(where + failed);
            placed.setStackTrace(failed.getStackTrace());
            throw placed;
        }
        int bytes = size(row, 0) + size(row, 1);
        for (int number = 0; !row.isNullAt(7) && number < row.getArray(7).numElements(); number++) {
            InternalRow header = row.getArray(7).getStruct(number, 2);
            bytes += header.getUTF8String(0).numBytes() + size(header, 1);
        }
        return bytes;
    }

    private static int size(InternalRow row, int column) {
        return row.isNullAt(column) ? 0 : row.getBinary(column).length;
    }

    /**
     * Sets `pending` to the next record, which may lie at or after `end`; leaves it null if the position reaches `end`
     * before there is one.
     */
    private void advance() {
        if (isCancelled) {
            throw new CancellationException();
        }
        long since = System.nanoTime();
        while (pending == null && position < end) {
            if (polled.hasNext()) {
                pending = (ConsumerRecord) polled.next();
            } else if (poll()) {
                since = System.nanoTime();
            } else {
                giveUp(TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - since));
            }
        }
    }

    /** Returns whether the poll returned records or skipped offsets: transaction markers, aborted records. */
    private boolean poll() {
        List records = consumer.poll(POLL).records(partition);
        polled = records.iterator();
        return !records.isEmpty() || passed();
    }

    private boolean passed() {
        try {
            long reached = consumer.position(partition, POLL);
            boolean isFurther = reached > position;
            position = Math.max(position, reached);
            return isFurther;
        } catch (TimeoutException unknown) {
            // After a change of leader the client validates its position.
            return false;
        }
    }

    private void giveUp(long waitedMs) {
        if (isCancelled) {
            throw new CancellationException();
        }
        if (waitedMs > pollTimeoutMs) {
            String waited = "no records for " + waitedMs / 1000 + " s";
            throw new TimeoutException(
                partition + ": " + waited + " at offset " + position + ", the range ends at " + end);
        }
    }
}
