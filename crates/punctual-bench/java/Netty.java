// netty's HashedWheelTimer with a tick of a millisecond. Compiled only if a netty jar is found.

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import java.util.concurrent.TimeUnit;

public final class Netty implements Bench.Peer {
    private final HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS);

    public Object after(long delay, Runnable job) {
        return timer.newTimeout(timeout -> job.run(), delay, TimeUnit.NANOSECONDS);
    }

    public void cancel(Object handle) {
        ((Timeout) handle).cancel();
    }

    public long size() {
        return timer.pendingTimeouts();
    }

    public void stop() {
        // The entries left come back as a set of a million: the timer's thread ends without our waiting for it.
        new Thread(timer::stop).start();
    }
}
