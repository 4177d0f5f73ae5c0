package io.millrace;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;

/** Runs a physical plan that was planned once on the rows of another batch. */
public class PlanTemplate {
  private static class Swap extends scala.runtime.AbstractPartialFunction {
    private final RDD rows;
    int scans = 0;

    Swap(RDD rows) { this.rows = rows; }

    public boolean isDefinedAt(Object node) { return node instanceof RDDScanExec; }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!(node instanceof RDDScanExec)) return otherwise.apply(node);
      scans++;
      if (rows == null) return node;
      RDDScanExec scan = (RDDScanExec) node;
      return scan.copy(scan.output(), rows, scan.name(), scan.outputPartitioning(),
          scan.outputOrdering(), scan.stream());
    }
  }

  /** How many scans of given rows a plan has; a template must have exactly one. */
  public static int scans(SparkPlan plan) {
    Swap swap = new Swap(null);
    plan.transformUp(swap);
    return swap.scans;
  }

  /** The plan's rows over another batch. Nodes are copied, so nothing of the last run is kept. */
  public static RDD run(SparkPlan template, RDD rows) {
    return ((SparkPlan) template.transformUp(new Swap(rows))).execute();
  }
}
