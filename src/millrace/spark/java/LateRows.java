package io.millrace;

import java.io.Serializable;

/**
 * Tells late rows from others in a plan that serves many epochs. The plan refers to this object and
 * Spark sends it with each job's tasks, so its limit may change between epochs while the plan and
 * its generated code stay as they are.
 */
public class LateRows implements Serializable {
  private long limit;

  /** From now on, rows whose time is not after this one are late. */
  public void set(long limit) { this.limit = limit; }

  public boolean isLate(long time) { return time <= limit; }
}
