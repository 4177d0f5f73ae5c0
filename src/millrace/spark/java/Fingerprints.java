package io.millrace;

import java.math.BigInteger;
import java.nio.ByteOrder;
import java.security.MessageDigest;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.CollationFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Fingerprints of keys: their encoding, mixed if it is short, else hashed. `docs/formats.md` has the
 * definition, and `millrace.keygroups.hashing` the same for Arrow arrays. Invariant: the encoding of
 * one list of types is injective, so keys of at most SHORT bytes never have the same fingerprint.
 */
public class Fingerprints implements java.io.Serializable {
  private static final int SHORT = 15;
  private static final int SALT = 8;
  private static final int ROOM = 256;
  private static final int KEPT = 1 << 16;
  private static final long HASHED = 1L << 63;
  private static final boolean REVERSED = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN;

  private static final int BOOLEAN = 0;
  private static final int BYTE = 1;
  private static final int SHORT_INT = 2;
  private static final int INT = 3;
  private static final int LONG = 4;
  private static final int FLOAT = 5;
  private static final int DOUBLE = 6;
  private static final int DECIMAL = 7;
  private static final int WIDE_DECIMAL = 8;
  private static final int STRING = 9;
  private static final int COLLATED = 10;
  private static final int BINARY = 11;
  private static final int STRUCT = 12;
  private static final int ARRAY = 13;

  /** Both halves, as a row of two longs that needs no boxes. */
  public static class Pair extends GenericInternalRow {
    private final long hi;
    private final long lo;

    Pair(long hi, long lo) {
      super(new Object[0]);
      this.hi = hi;
      this.lo = lo;
    }

    public long getLong(int at) { return at == 0 ? hi : lo; }
    public boolean isNullAt(int at) { return false; }
    public Object get(int at, DataType type) { return Long.valueOf(getLong(at)); }
    public Object genericGet(int at) { return Long.valueOf(getLong(at)); }
    public int numFields() { return 2; }
    public GenericInternalRow copy() { return this; }
  }

  /** A type of which keys are made, and its parts. */
  private static class Kind implements java.io.Serializable {
    int code;
    int width = 0;
    int precision = 0;
    int scale = 0;
    int collation = 0;
    Kind[] parts = new Kind[0];
  }

  /** What a thread encodes into; the salt is in front of the encoding. */
  private static class Scratch {
    byte[] bytes = new byte[ROOM];
    int end = SALT;
    final byte[] digest = new byte[32];
    final MessageDigest sha256;

    Scratch() {
      try {
        sha256 = MessageDigest.getInstance("SHA-256");
      } catch (java.security.NoSuchAlgorithmException e) {
        throw new IllegalStateException(e);
      }
    }

    void begin() {
      if (bytes.length > KEPT) bytes = new byte[ROOM];
      end = SALT;
    }

    /** Makes room for more bytes, and for the padding of a short encoding. */
    void reserve(int more) {
      long needed = (long) end + more + 16;
      if (needed <= bytes.length) return;
      if (needed > Integer.MAX_VALUE - 16) {
        throw new IllegalArgumentException("a key has more than 2 GB");
      }
      int size = (int) Math.min(Math.max(needed, 2L * bytes.length), Integer.MAX_VALUE - 16);
      bytes = java.util.Arrays.copyOf(bytes, size);
    }

    void put(int value) { bytes[end++] = (byte) value; }

    void putWord(long value, int width) {
      setWord(bytes, end, value);
      end += width;
    }

    /** How many bytes or elements follow, plus one; 0 stands for NULL. */
    void putCount(long count) {
      long left = count + 1;
      while (left > 127) {
        put((int) (left & 127) | 128);
        left >>>= 7;
      }
      put((int) left);
    }
  }

  private static class Scratches extends ThreadLocal {
    protected Object initialValue() { return new Scratch(); }
  }

  private static final Scratches SCRATCHES = new Scratches();

  private final long salt;
  private final long[] round = new long[4];
  private final Kind[] columns;

  public Fingerprints(StructType key, long salt) {
    this.salt = salt;
    for (int i = 0; i < 4; i++) round[i] = mixed(salt + (i + 1) * 0x9E3779B97F4A7C15L);
    StructField[] fields = key.fields();
    columns = new Kind[fields.length];
    for (int i = 0; i < fields.length; i++) columns[i] = kindOf(fields[i].dataType());
  }

  private static Kind kindOf(DataType type) {
    Kind kind = new Kind();
    if (type instanceof StructType) {
      kind.code = STRUCT;
      StructField[] fields = ((StructType) type).fields();
      kind.parts = new Kind[fields.length];
      for (int i = 0; i < fields.length; i++) kind.parts[i] = kindOf(fields[i].dataType());
    } else if (type instanceof ArrayType) {
      kind.code = ARRAY;
      kind.parts = new Kind[] {kindOf(((ArrayType) type).elementType())};
    } else if (type instanceof StringType) {
      kind.collation = ((StringType) type).collationId();
      kind.code = kind.collation == CollationFactory.UTF8_BINARY_COLLATION_ID ? STRING : COLLATED;
    } else if (type instanceof BinaryType) {
      kind.code = BINARY;
    } else if (type instanceof DecimalType) {
      kind.precision = ((DecimalType) type).precision();
      kind.scale = ((DecimalType) type).scale();
      kind.code = kind.precision > 18 ? WIDE_DECIMAL : DECIMAL;
      kind.width = kind.precision > 18 ? 16 : 8;
    } else if (type instanceof BooleanType) {
      kind.code = BOOLEAN;
      kind.width = 1;
    } else if (type instanceof ByteType) {
      kind.code = BYTE;
      kind.width = 1;
    } else if (type instanceof ShortType) {
      kind.code = SHORT_INT;
      kind.width = 2;
    } else if (type instanceof IntegerType || type instanceof DateType) {
      kind.code = INT;
      kind.width = 4;
    } else if (type instanceof FloatType) {
      kind.code = FLOAT;
      kind.width = 4;
    } else if (type instanceof DoubleType) {
      kind.code = DOUBLE;
      kind.width = 8;
    } else {
      // Times and intervals are longs in Spark's rows.
      kind.code = LONG;
      kind.width = 8;
    }
    return kind;
  }

  /** The fingerprint of a key of one column that is a whole number, a date or a time. */
  public InternalRow ofNumber(long value, boolean isNull) {
    if (isNull) return shortPair(0, 1L << 56);
    int width = columns[0].width;
    long kept = width == 8 ? value : value & ((1L << (8 * width)) - 1);
    return shortPair(1 | kept << 8, (kept >>> 56) | (long) (1 + width) << 56);
  }

  /** The fingerprint of a key of one string, which has no collation. */
  public InternalRow ofString(UTF8String value) {
    if (value == null) return shortPair(0, 1L << 56);
    Scratch to = (Scratch) SCRATCHES.get();
    to.begin();
    putString(to, value);
    return pair(to);
  }

  /** The fingerprint of a key of any columns. */
  public InternalRow ofRow(InternalRow key) {
    Scratch to = (Scratch) SCRATCHES.get();
    to.begin();
    for (int i = 0; i < columns.length; i++) encode(columns[i], key, i, to);
    return pair(to);
  }

  private static void encode(Kind kind, SpecializedGetters from, int at, Scratch to) {
    to.reserve(32);
    if (from.isNullAt(at)) {
      to.put(0);
      return;
    }
    switch (kind.code) {
      case STRING:
        putString(to, from.getUTF8String(at));
        return;
      case COLLATED:
        putBytes(to, CollationFactory.getCollationKeyBytes(from.getUTF8String(at), kind.collation));
        return;
      case BINARY:
        putBytes(to, from.getBinary(at));
        return;
      case ARRAY:
        ArrayData elements = from.getArray(at);
        int count = elements.numElements();
        to.putCount(count);
        for (int i = 0; i < count; i++) encode(kind.parts[0], elements, i, to);
        return;
      default:
        to.put(1);
    }
    switch (kind.code) {
      case STRUCT:
        InternalRow fields = from.getStruct(at, kind.parts.length);
        for (int i = 0; i < kind.parts.length; i++) encode(kind.parts[i], fields, i, to);
        return;
      case BOOLEAN: to.put(from.getBoolean(at) ? 1 : 0); return;
      case BYTE: to.put(from.getByte(at)); return;
      case SHORT_INT: to.putWord(from.getShort(at), 2); return;
      case INT: to.putWord(from.getInt(at), 4); return;
      case LONG: to.putWord(from.getLong(at), 8); return;
      // Spark groups -0.0 with 0.0, and all NaNs; adding 0.0 and these functions do the same.
      case FLOAT: to.putWord(Float.floatToIntBits(from.getFloat(at) + 0.0f), 4); return;
      case DOUBLE: to.putWord(Double.doubleToLongBits(from.getDouble(at) + 0.0), 8); return;
      case DECIMAL:
        to.putWord(from.getDecimal(at, kind.precision, kind.scale).toUnscaledLong(), 8);
        return;
      case WIDE_DECIMAL:
        BigInteger digits = from.getDecimal(at, kind.precision, kind.scale).toJavaBigDecimal()
            .unscaledValue();
        to.putWord(digits.longValue(), 8);
        to.putWord(digits.shiftRight(64).longValue(), 8);
        return;
      default: throw new IllegalStateException("a kind without an encoding: " + kind.code);
    }
  }

  private static void putString(Scratch to, UTF8String value) {
    int length = value.numBytes();
    to.reserve(length + 5);
    to.putCount(length);
    value.writeToMemory(to.bytes, Platform.BYTE_ARRAY_OFFSET + to.end);
    to.end += length;
  }

  private static void putBytes(Scratch to, byte[] value) {
    to.reserve(value.length + 5);
    to.putCount(value.length);
    System.arraycopy(value, 0, to.bytes, to.end, value.length);
    to.end += value.length;
  }

  private InternalRow pair(Scratch from) {
    int length = from.end - SALT;
    if (length <= SHORT) {
      java.util.Arrays.fill(from.bytes, from.end, SALT + 16, (byte) 0);
      long first = word(from.bytes, SALT);
      return shortPair(first, word(from.bytes, SALT + 8) | (long) length << 56);
    }
    setWord(from.bytes, 0, salt);
    from.sha256.update(from.bytes, 0, from.end);
    try {
      from.sha256.digest(from.digest, 0, 32);
    } catch (java.security.DigestException e) {
      throw new IllegalStateException(e);
    }
    return new Pair(word(from.digest, 0), word(from.digest, 8) | HASHED);
  }

  /** A permutation of 127 bits: four rounds of a Feistel network. */
  private InternalRow shortPair(long x, long y) {
    x ^= mixed(y + round[0]);
    y ^= mixed(x + round[1]) >>> 1;
    x ^= mixed(y + round[2]);
    y ^= mixed(x + round[3]) >>> 1;
    return new Pair(x, y);
  }

  private static long mixed(long v) {
    v = (v ^ (v >>> 30)) * 0xBF58476D1CE4E5B9L;
    v = (v ^ (v >>> 27)) * 0x94D049BB133111EBL;
    return v ^ (v >>> 31);
  }

  private static long word(byte[] bytes, int at) {
    long found = Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + at);
    return REVERSED ? Long.reverseBytes(found) : found;
  }

  private static void setWord(byte[] bytes, int at, long value) {
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + at,
        REVERSED ? Long.reverseBytes(value) : value);
  }
}
