package io.millrace.lab;

import java.io.DataOutputStream;
import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * One of Spark's RocksDB state stores, driven from loops in the JVM: nothing but the numbers of the
 * keys comes from Python, so its times are the store's own.
 */
public class StateStoreDriver {
  private static final int ENTRIES = 4;
  private static final String FAMILY = "default";
  private static final UTF8String LOW = UTF8String.fromString("low");
  private static final UTF8String HIGH = UTF8String.fromString("high");

  private final String kind;
  private final RocksDBStateStoreProvider provider;
  private final UnsafeProjection keys;
  private final UnsafeProjection values;
  private StateStore store;
  private long version;

  public StateStoreDriver(
      SQLConf settings, Configuration hadoop, String folder, int partition, String kind,
      String keySchema, String valueSchema, long version) {
    StructType key = StructType.fromDDL(keySchema);
    StructType value = StructType.fromDDL(valueSchema);
    this.kind = kind;
    this.keys = UnsafeProjection.create(key);
    this.values = UnsafeProjection.create(value);
    this.version = version;
    provider = new RocksDBStateStoreProvider();
    provider.init(
        new StateStoreId(folder, 0L, partition, "default"), key, value,
        new NoPrefixKeyStateEncoderSpec(key), kind.equals("list"),
        new StateStoreConf(settings, new scala.collection.immutable.HashMap()),
        hadoop, kind.equals("list"), scala.Option.empty());
    open();
  }

  private void open() {
    store = provider.getStore(version, scala.Option.empty(), false, false);
  }

  public long version() { return version; }

  public void fill(long[] chosen) {
    for (int i = 0; i < chosen.length; i++) {
      long k = chosen[i];
      if (kind.equals("map")) {
        for (long entry = 0; entry < ENTRIES; entry++) { store.put(key(k, entry), value(k), FAMILY); }
      } else if (kind.equals("list")) {
        UnsafeRow[] elements = new UnsafeRow[ENTRIES];
        for (int n = 0; n < ENTRIES; n++) { elements[n] = value(k + n).copy(); }
        store.putList(key(k), elements, FAMILY);
      } else {
        store.put(key(k), value(k), FAMILY);
      }
    }
  }

  public void update(long[] chosen) {
    for (int i = 0; i < chosen.length; i++) {
      long k = chosen[i];
      if (kind.equals("list")) {
        store.merge(key(k), value(1L), FAMILY);
      } else {
        UnsafeRow name = kind.equals("map") ? key(k, 0L) : key(k);
        long before = number(store.get(name, FAMILY));
        store.put(name, value(before + 1), FAMILY);
      }
    }
  }

  public long read(long[] chosen) {
    long total = 0;
    for (int i = 0; i < chosen.length; i++) {
      long k = chosen[i];
      if (kind.equals("list")) {
        scala.collection.Iterator elements = store.valuesIterator(key(k), FAMILY);
        long last = 0;
        while (elements.hasNext()) { last = number((UnsafeRow) elements.next()); }
        total += last;
      } else {
        total += number(store.get(kind.equals("map") ? key(k, 1L) : key(k), FAMILY));
      }
    }
    return total;
  }

  public long scan() {
    long total = 0;
    StateStoreIterator rows = rows();
    while (rows.hasNext()) { total += number(((UnsafeRowPair) rows.next()).value()); }
    rows.close();
    return total;
  }

  /** Writes the totals of all keys below a number to a file, eight bytes each. */
  public void totals(int number, String path) throws java.io.IOException {
    long[] totals = new long[number];
    StateStoreIterator rows = rows();
    while (rows.hasNext()) {
      UnsafeRowPair pair = (UnsafeRowPair) rows.next();
      totals[(int) pair.key().getLong(0)] += number(pair.value());
    }
    rows.close();
    DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path)));
    for (int i = 0; i < number; i++) { out.writeLong(totals[i]); }
    out.close();
  }

  /** Adds every row to the store of its key. */
  public void divide(StateStoreDriver[] parts) {
    StateStoreIterator rows = rows();
    while (rows.hasNext()) {
      UnsafeRowPair pair = (UnsafeRowPair) rows.next();
      StateStore part = parts[(int) (pair.key().getLong(0) % parts.length)].store;
      if (kind.equals("list")) {
        part.merge(pair.key(), pair.value(), FAMILY);
      } else {
        part.put(pair.key(), pair.value(), FAMILY);
      }
    }
    rows.close();
  }

  /** Makes what was changed durable, and opens the version that this makes. */
  public void commit() {
    version = store.commit();
    open();
  }

  public void close() {
    store.abort();
    provider.close();
  }

  private StateStoreIterator rows() {
    return kind.equals("list") ? store.iteratorWithMultiValues(FAMILY) : store.iterator(FAMILY);
  }

  private UnsafeRow key(long k) {
    return keys.apply(new GenericInternalRow(new Object[] {Long.valueOf(k)}));
  }

  private UnsafeRow key(long k, long entry) {
    return keys.apply(new GenericInternalRow(new Object[] {Long.valueOf(k), Long.valueOf(entry)}));
  }

  private UnsafeRow value(long number) {
    return values.apply(new GenericInternalRow(fields(number)));
  }

  private Object[] fields(long number) {
    if (!kind.equals("nested")) { return new Object[] {Long.valueOf(number)}; }
    Object[] tags = {UTF8String.fromString("t" + number % 10), UTF8String.fromString("all")};
    Object[] limits = {
      new GenericArrayData(new Object[] {Double.valueOf(0.5)}),
      new GenericArrayData(new Object[] {Double.valueOf((double) number)})
    };
    MapData map = new ArrayBasedMapData(
        new GenericArrayData(new Object[] {LOW, HIGH}), new GenericArrayData(limits));
    return new Object[] {new GenericArrayData(tags), map};
  }

  private long number(UnsafeRow row) {
    if (!kind.equals("nested")) { return row.getLong(0); }
    MapData limits = row.getMap(1);
    ArrayData names = limits.keyArray();
    for (int i = 0; i < names.numElements(); i++) {
      if (names.getUTF8String(i).equals(HIGH)) {
        return (long) limits.valueArray().getArray(i).getDouble(0);
      }
    }
    throw new IllegalStateException("a nested state without its number");
  }
}
