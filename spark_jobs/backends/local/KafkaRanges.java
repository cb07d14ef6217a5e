package headrace;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
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

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.util.ArrowUtils;

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
    private final byte[] header;

    Calendar(long firstMs, long lastMs, String header) {
        this.firstMs = firstMs;
        this.lastMs = lastMs;
        this.header = header.getBytes(StandardCharsets.UTF_8);
    }

    boolean has(long ms) {
        return ms >= firstMs && ms <= lastMs;
    }

    /** The time in microseconds. */
    long micros(long ms) {
        return ms < firstMs ? firstMs * 1000 - 1 : ms > lastMs ? lastMs * 1000 + 1 : ms * 1000;
    }

    byte[] header() {
        return header;
    }
}

/** One partition: a range after the other. */
final class PartitionReader implements Callable {
    private static final Duration POLL = Duration.ofMillis(100);

    private final KafkaConsumer consumer;
    private final TopicPartition partition;
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
            write();
        }
        position = end;
        return null;
    }

    private boolean hasNext() {
        return pending != null && pending.offset() < end;
    }

    private void write() throws IOException {
        FileOutputStream output = new FileOutputStream(file);
        try {
            RecordBatch batch = new RecordBatch(partition.topic(), calendar);
            try {
                batch.allocate();
                ArrowFileWriter writer = new ArrowFileWriter(batch.root(), null, output.getChannel());
                writer.start();
                while (hasNext()) {
                    fill(batch);
                    writer.writeBatch();
                    batch.clear();
                }
                writer.end();
            } finally {
                batch.close();
            }
        } finally {
            output.close();
        }
    }

    private void fill(RecordBatch batch) {
        while (hasNext() && !batch.isFull()) {
            add(batch);
            position = pending.offset() + 1;
            pending = null;
            advance();
        }
        batch.finish();
    }

    private void add(RecordBatch batch) {
        try {
            batch.add(pending);
        } catch (RuntimeException failed) {
            String where = partition + ", offset " + pending.offset() + ": the record cannot be stored: ";
            IllegalStateException placed = new IllegalStateException(where + failed);
            placed.setStackTrace(failed.getStackTrace());
            throw placed;
        }
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

/** Records as Arrow vectors, as many as one batch of a file has. */
final class RecordBatch {
    private static final int MOST_ROWS = 16384;
    private static final int MOST_BYTES = 8 << 20;

    private final BufferAllocator memory = ArrowUtils.rootAllocator().newChildAllocator("kafka", 0, Long.MAX_VALUE);
    private final byte[] topic;
    private final Calendar calendar;
    private final VectorSchemaRoot root;
    private final VarBinaryVector keys;
    private final VarBinaryVector values;
    private final VarCharVector topics;
    private final IntVector partitions;
    private final BigIntVector offsets;
    private final TimeStampMicroTZVector timestamps;
    private final IntVector timestampTypes;
    private final ListVector headers;
    private final StructVector header;
    private final VarCharVector headerKeys;
    private final VarBinaryVector headerValues;
    private int count;
    private int headerCount;
    private int bytes;

    RecordBatch(String topic, Calendar calendar) {
        this.calendar = calendar;
        this.topic = topic.getBytes(StandardCharsets.UTF_8);
        root = VectorSchemaRoot.create(schema(), memory);
        keys = (VarBinaryVector) root.getVector("key");
        values = (VarBinaryVector) root.getVector("value");
        topics = (VarCharVector) root.getVector("topic");
        partitions = (IntVector) root.getVector("partition");
        offsets = (BigIntVector) root.getVector("offset");
        timestamps = (TimeStampMicroTZVector) root.getVector("timestamp");
        timestampTypes = (IntVector) root.getVector("timestampType");
        headers = (ListVector) root.getVector("headers");
        header = (StructVector) headers.getDataVector();
        headerKeys = (VarCharVector) header.getChild("key");
        headerValues = (VarBinaryVector) header.getChild("value");
    }

    void allocate() {
        root.allocateNew();
    }

    private static Schema schema() {
        ArrowType binary = new ArrowType.Binary();
        ArrowType text = new ArrowType.Utf8();
        ArrowType integer = new ArrowType.Int(32, true);
        ArrowType time = new ArrowType.Timestamp(org.apache.arrow.vector.types.TimeUnit.MICROSECOND, "UTC");
        Field pair = field("element", new ArrowType.Struct(), new Field[] {
            field("key", text, new Field[0]), field("value", binary, new Field[0])});
        return new Schema(Arrays.asList(new Field[] {
            field("key", binary, new Field[0]), field("value", binary, new Field[0]),
            field("topic", text, new Field[0]), field("partition", integer, new Field[0]),
            field("offset", new ArrowType.Int(64, true), new Field[0]), field("timestamp", time, new Field[0]),
            field("timestampType", integer, new Field[0]),
            field("headers", new ArrowType.List(), new Field[] {pair})}));
    }

    private static Field field(String name, ArrowType type, Field[] children) {
        return new Field(name, FieldType.nullable(type), Arrays.asList(children));
    }

    VectorSchemaRoot root() {
        return root;
    }

    boolean isFull() {
        return count == MOST_ROWS || bytes >= MOST_BYTES;
    }

    void add(ConsumerRecord record) {
        set(keys, count, (byte[]) record.key());
        set(values, count, (byte[]) record.value());
        topics.setSafe(count, topic);
        partitions.setSafe(count, record.partition());
        offsets.setSafe(count, record.offset());
        long ms = record.timestamp();
        timestamps.setSafe(count, calendar.micros(ms));
        timestampTypes.setSafe(count, record.timestampType().id);
        Iterator given = record.headers().iterator();
        boolean isDated = calendar.has(ms);
        if (given.hasNext() || !isDated) {
            headers.startNewValue(count);
            int before = headerCount;
            while (given.hasNext()) {
                Header each = (Header) given.next();
                addHeader(each.key().getBytes(StandardCharsets.UTF_8), each.value());
            }
            if (!isDated) {
                addHeader(calendar.header(), Long.toString(ms).getBytes(StandardCharsets.UTF_8));
            }
            headers.endValue(count, headerCount - before);
        } else {
            headers.setNull(count);
        }
        count++;
    }

    private void addHeader(byte[] key, byte[] value) {
        header.setIndexDefined(headerCount);
        headerKeys.setSafe(headerCount, key);
        bytes += key.length;
        set(headerValues, headerCount, value);
        headerCount++;
    }

    private void set(VarBinaryVector column, int row, byte[] value) {
        if (value == null) {
            column.setNull(row);
        } else {
            column.setSafe(row, value);
            bytes += value.length;
        }
    }

    void finish() {
        headerKeys.setValueCount(headerCount);
        headerValues.setValueCount(headerCount);
        header.setValueCount(headerCount);
        root.setRowCount(count);
    }

    void clear() {
        for (Iterator all = root.getFieldVectors().iterator(); all.hasNext();) {
            ((org.apache.arrow.vector.FieldVector) all.next()).reset();
        }
        count = 0;
        headerCount = 0;
        bytes = 0;
    }

    void close() {
        root.close();
        memory.close();
    }
}
