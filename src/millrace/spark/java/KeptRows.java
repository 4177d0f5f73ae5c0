package io.millrace;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.storage.StorageLevel;

/** Rows that several readers share: computed by the first that asks, kept for the others. */
public class KeptRows {
  /** Spark's operators hand out the same row object again and again; kept rows are copies. */
  public static class Copy implements Function {
    public Object call(Object row) { return ((InternalRow) row).copy(); }
  }

  public static RDD of(RDD rows) {
    JavaRDD given = new JavaRDD(rows, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    return given.map(new Copy()).rdd().persist(StorageLevel.MEMORY_AND_DISK());
  }
}
