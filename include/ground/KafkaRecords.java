package headrace;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Reads the records of one partition into Arrow files, so that no Python object is made of a record
 * (kafka_columns.py). Compiled by Janino, which knows no type parameters.
 */
public final class KafkaRecords {
    private KafkaConsumer consumer;
    private TopicPartition partition;
    private Iterator polled = Collections.emptyIterator();
    /** A record that was polled, but is not below the end of the read that met it; null otherwise. */
    private ConsumerRecord kept;
    private long position;
    private Schema schema;

    /** Reads nothing yet; the records from offset `start` on are next. `columns`: their schema, as a message of Arrow. */
    public void open(Map options, String topic, int number, long start, byte[] columns) {
        schema = Schema.deserializeMessage(ByteBuffer.wrap(columns));
        consumer = new KafkaConsumer(options);
        partition = new TopicPartition(topic, number);
        consumer.assign(Collections.singletonList(partition));
        consumer.seek(partition, start);
        position = start;
    }

    /**
     * Writes the next records below `end` into a file: up to `most` of them, or somewhat more than `mostBytes`. Returns
     * the offset before which all are read, which is lower than `end` also when none came for a fifth of a second.
     */
    public long read(String file, long end, int most, int mostBytes) throws IOException {
        RecordColumns columns = new RecordColumns(schema);
        try {
            boolean isWaiting = true;
            while (isWaiting && position < end && columns.count < most && columns.bytes < mostBytes) {
                if (kept == null && polled.hasNext()) {
                    kept = (ConsumerRecord) polled.next();
                }
                if (kept == null) {
                    isWaiting = poll();
                } else if (kept.offset() >= end) {
                    position = end;
                } else {
                    position = kept.offset() + 1;
                    columns.add(kept);
                    kept = null;
                }
            }
            columns.write(file);
            return Math.min(position, end);
        } finally {
            columns.close();
        }
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
}

/** The records of one read. */
final class RecordColumns {
    int count;
    /** Of what the number of records does not bound: of a header also where it ends. */
    int bytes;
    private int headerCount;
    private final RootAllocator memory = new RootAllocator();
    private final VectorSchemaRoot root;
    private final BigIntVector offsets;
    private final BigIntVector timestamps;
    private final IntVector types;
    private final VarBinaryVector keys;
    private final VarBinaryVector values;
    private final ListVector headers;
    private final StructVector header;
    private final VarCharVector headerKeys;
    private final VarBinaryVector headerValues;

    RecordColumns(Schema schema) {
        root = VectorSchemaRoot.create(schema, memory);
        offsets = (BigIntVector) root.getVector("offset");
        timestamps = (BigIntVector) root.getVector("timestamp");
        types = (IntVector) root.getVector("timestamp_type");
        keys = (VarBinaryVector) root.getVector("key");
        values = (VarBinaryVector) root.getVector("value");
        headers = (ListVector) root.getVector("headers");
        header = (StructVector) headers.getDataVector();
        headerKeys = (VarCharVector) header.getChild("key");
        headerValues = (VarBinaryVector) header.getChild("value");
    }

    void add(ConsumerRecord record) {
        offsets.setSafe(count, record.offset());
        timestamps.setSafe(count, record.timestamp());
        types.setSafe(count, record.timestampType().id);
        set(keys, count, (ByteBuffer) record.key());
        set(values, count, (ByteBuffer) record.value());
        Header[] given = record.headers().toArray();
        headers.startNewValue(count);
        for (int number = 0; number < given.length; number++, headerCount++) {
            byte[] key = given[number].key().getBytes(StandardCharsets.UTF_8);
            byte[] value = given[number].value();
            header.setIndexDefined(headerCount);
            headerKeys.setSafe(headerCount, key);
            set(headerValues, headerCount, value == null ? null : ByteBuffer.wrap(value));
            bytes += key.length + 8;
        }
        headers.endValue(count, given.length);
        count++;
    }

    private void set(VarBinaryVector column, int row, ByteBuffer value) {
        if (value == null) {
            column.setNull(row);
        } else {
            // Arrow moves the position to the end.
            int length = value.remaining();
            column.setSafe(row, value, value.position(), length);
            bytes += length;
        }
    }

    void write(String file) throws IOException {
        headerKeys.setValueCount(headerCount);
        headerValues.setValueCount(headerCount);
        header.setValueCount(headerCount);
        root.setRowCount(count);
        FileOutputStream output = new FileOutputStream(file);
        try {
            ArrowFileWriter writer = new ArrowFileWriter(root, null, output.getChannel());
            writer.start();
            writer.writeBatch();
            writer.end();
        } finally {
            output.close();
        }
    }

    void close() {
        root.close();
        memory.close();
    }
}
