// The workloads of punctual-bench on Java's own delay queues: same sizes, same delays, same line of output.
// Usage: java Bench PEER WORKLOAD THREADS ENTRIES SECONDS
//
// The process warms up (compiler and heap) on small versions of the workloads, then measures once. Memory is the heap
// after a collection, CPU has the operating system's resolution of 10 ms, and context switches are those of threads
// that are still alive.

import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

public final class Bench {
    static final int WORKERS = 2;
    static final int CONSUMERS = 8;
    static final int WINDOW = 1000;
    static final long MILLISECOND = 1_000_000L;
    static final long SECOND = 1_000_000_000L;
    static final long LEAD = 6_000L;

    /** What every peer can do. */
    interface Peer {
        Object after(long delayNanos, Runnable job);

        void cancel(Object handle);

        /** Entries still held; negative if it cannot say. */
        long size();

        void stop();
    }

    public static void main(String[] args) throws Exception {
        String peer = args[0];
        String workload = args[1];
        int threads = Integer.parseInt(args[2]);
        int entries = Integer.parseInt(args[3]);
        int seconds = Integer.parseInt(args[4]);
        warmUp(peer, workload, Math.min(entries, 200_000));
        collectGarbage();
        System.out.println("sample" + measure(peer, workload, threads, entries, seconds));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void warmUp(String peer, String workload, int entries) throws Exception {
        for (int round = 0; round < 3; round++) {
            insert(peer, 1, entries);
            cancel(peer, 1, entries);
            fire(peer, 1, entries / 4, 0);
        }
        if (workload.equals("precision") || workload.equals("consumers")) {
            measure(peer, workload, 1, 20_000, 1);
        }
    }

    static String measure(String peer, String workload, int threads, int entries, int seconds) throws Exception {
        switch (workload) {
            case "insert": return insert(peer, threads, entries);
            case "cancel": return cancel(peer, threads, entries);
            case "fire": return fire(peer, threads, entries, seconds);
            case "precision": return paced(peer, WORKERS, 1, entries, seconds, 500 * MILLISECOND);
            case "consumers": return paced(peer, CONSUMERS, threads, entries, seconds, 100 * MILLISECOND);
            case "idle": return idle(peer, entries, seconds);
            default: throw new IllegalArgumentException(workload);
        }
    }

    static Peer start(String name, int threads) throws Exception {
        switch (name) {
            case "java-delayqueue": return new Queue(threads);
            case "java-stpe": return new Pool(threads, false);
            case "java-stpe-remove": return new Pool(threads, true);
            case "netty": return (Peer) Class.forName("Netty").getDeclaredConstructor().newInstance();
            default: throw new IllegalArgumentException(name);
        }
    }

    // The workloads.

    static String insert(String name, int threads, int entries) throws Exception {
        Peer peer = start(name, WORKERS);
        Lateness lateness = new Lateness();
        long cpu = cpuNanos();
        long wall = onThreads(threads, number -> {
            Random random = new Random(number);
            for (int i = 0; i < entries / threads; i++) {
                peer.after(random.between(10 * SECOND, 70 * SECOND), lateness.job(0));
            }
        });
        settle(peer);
        cpu = cpuNanos() - cpu;
        peer.stop();
        return perEntry(entries, wall, cpu);
    }

    static String cancel(String name, int threads, int entries) throws Exception {
        Peer peer = start(name, WORKERS);
        Lateness lateness = new Lateness();
        settle(peer);
        long heap = heapBytes();
        long cpu = cpuNanos();
        long wall = onThreads(threads, number -> {
            ArrayDeque<Object> window = new ArrayDeque<>(WINDOW);
            for (int i = 0; i < entries / threads; i++) {
                if (window.size() == WINDOW) {
                    peer.cancel(window.pollFirst());
                }
                window.addLast(peer.after(30 * SECOND, lateness.job(0)));
            }
            window.forEach(peer::cancel);
        });
        settle(peer);
        cpu = cpuNanos() - cpu;
        long size = peer.size();
        String left = value("left_mb", (heapBytes() - heap) / 1e6) + (size < 0 ? "" : value("left_entries", size));
        peer.stop();
        return perEntry(entries, wall, cpu) + left;
    }

    static String fire(String name, int threads, int entries, int seconds) throws Exception {
        Peer peer = start(name, WORKERS);
        Lateness lateness = new Lateness();
        long begin = System.nanoTime() + SECOND / 2 + entries * LEAD;
        long end = begin + seconds * SECOND;
        onThreads(threads, number -> {
            Random random = new Random(number);
            for (int i = 0; i < entries / threads; i++) {
                long due = begin + random.between(0, end - begin);
                peer.after(due - System.nanoTime(), lateness.job(due));
            }
        });
        settle(peer);
        sleepUntil(begin - 20 * MILLISECOND);
        long cpu = cpuNanos();
        long switches = switches();
        lateness.waitFor(entries, end);
        cpu = cpuNanos() - cpu;
        switches = switches() - switches;
        peer.stop();
        return value("wall_ms", (lateness.lastRan() - begin) / 1e6) + value("cpu_ms", cpu / 1e6)
            + value("switches", switches) + lateness.line();
    }

    static String paced(String name, int workers, int threads, int entries, int seconds, long longest) throws Exception {
        Peer peer = start(name, workers);
        Lateness lateness = new Lateness();
        settle(peer);
        long cpu = cpuNanos();
        long switches = switches();
        onThreads(threads, number -> {
            Random random = new Random(number);
            long start = System.nanoTime();
            int share = entries / threads;
            int added = 0;
            int bursts = seconds * 1000;
            for (int burst = 1; burst <= bursts; burst++) {
                for (; added < (long) share * burst / bursts; added++) {
                    long delay = random.between(MILLISECOND, longest);
                    peer.after(delay, lateness.job(System.nanoTime() + delay));
                }
                sleepUntil(start + burst * MILLISECOND);
            }
        });
        lateness.waitFor(entries, System.nanoTime() + longest);
        cpu = cpuNanos() - cpu;
        switches = switches() - switches;
        peer.stop();
        return value("cpu_ms", cpu / 1e6) + value("switches", switches) + lateness.line();
    }

    static String idle(String name, int entries, int seconds) throws Exception {
        Peer peer = start(name, WORKERS);
        Lateness lateness = new Lateness();
        settle(peer);
        long heap = heapBytes();
        Random random = new Random(1);
        for (int i = 0; i < entries; i++) {
            peer.after(random.between(3600 * SECOND, 3660 * SECOND), lateness.job(0));
        }
        settle(peer);
        double bytes = (double) (heapBytes() - heap) / entries;
        Thread.sleep(500);
        long cpu = cpuNanos();
        long switches = switches();
        Thread.sleep(seconds * 1000L);
        cpu = cpuNanos() - cpu;
        switches = switches() - switches;
        return value("switches", Math.max(0, switches - 1)) + value("cpu_us", cpu / 1e3) + value("entry_bytes", bytes);
    }

    // The peers of the standard library.

    /** DelayQueue and threads that take and run. */
    static final class Queue implements Peer {
        final DelayQueue<Entry> queue = new DelayQueue<>();
        final List<Thread> threads = new ArrayList<>();

        Queue(int workers) {
            for (int i = 0; i < workers; i++) {
                Thread thread = new Thread(() -> {
                    try {
                        while (true) {
                            queue.take().job.run();
                        }
                    } catch (InterruptedException stopped) {
                        return;
                    }
                });
                thread.setDaemon(true);
                thread.start();
                threads.add(thread);
            }
        }

        public Object after(long delay, Runnable job) {
            Entry entry = new Entry(System.nanoTime() + delay, job);
            queue.add(entry);
            return entry;
        }

        public void cancel(Object handle) {
            queue.remove(handle);
        }

        public long size() {
            return queue.size();
        }

        public void stop() {
            threads.forEach(Thread::interrupt);
        }

        static final class Entry implements Delayed {
            final long due;
            final Runnable job;

            Entry(long due, Runnable job) {
                this.due = due;
                this.job = job;
            }

            public long getDelay(TimeUnit unit) {
                return unit.convert(due - System.nanoTime(), TimeUnit.NANOSECONDS);
            }

            public int compareTo(Delayed other) {
                return Long.signum(due - ((Entry) other).due);
            }
        }
    }

    /** ScheduledThreadPoolExecutor, with or without removal on cancel. */
    static final class Pool implements Peer {
        final ScheduledThreadPoolExecutor pool;

        Pool(int workers, boolean remove) {
            pool = new ScheduledThreadPoolExecutor(workers);
            pool.setRemoveOnCancelPolicy(remove);
            pool.prestartAllCoreThreads();
        }

        public Object after(long delay, Runnable job) {
            return pool.schedule(job, delay, TimeUnit.NANOSECONDS);
        }

        public void cancel(Object handle) {
            ((java.util.concurrent.Future<?>) handle).cancel(false);
        }

        public long size() {
            return pool.getQueue().size();
        }

        public void stop() {
            pool.shutdownNow();
        }
    }

    // What is measured, and how.

    interface Body {
        void run(int number) throws Exception;
    }

    static long onThreads(int threads, Body body) throws Exception {
        CyclicBarrier barrier = new CyclicBarrier(threads);
        long[] starts = new long[threads];
        long[] ends = new long[threads];
        Thread[] running = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int number = i;
            running[i] = new Thread(() -> {
                try {
                    barrier.await();
                    starts[number] = System.nanoTime();
                    body.run(number);
                    ends[number] = System.nanoTime();
                } catch (Exception failed) {
                    failed.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            running[i].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        return Arrays.stream(ends).max().getAsLong() - Arrays.stream(starts).min().getAsLong();
    }

    /** Waits until all that was added has been absorbed: an entry added now and due soon has run. */
    static void settle(Peer peer) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        peer.after(MILLISECOND, done::countDown);
        done.await();
    }

    static void sleepUntil(long until) {
        long left;
        while ((left = until - System.nanoTime()) > 0) {
            LockSupport.parkNanos(left);
        }
    }

    static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    static long switches() throws Exception {
        long sum = 0;
        try (var tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path task : tasks) {
                for (String line : Files.readAllLines(task.resolve("status"))) {
                    if (line.startsWith("voluntary_ctxt_switches:")) {
                        sum += Long.parseLong(line.substring(line.indexOf(':') + 1).trim());
                    }
                }
            }
        }
        return sum;
    }

    static void collectGarbage() throws Exception {
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(50);
        }
    }

    static long heapBytes() throws Exception {
        collectGarbage();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    static String perEntry(int entries, long wall, long cpu) {
        return value("wall_ns", (double) wall / entries) + value("cpu_ns", (double) cpu / entries);
    }

    static String value(String name, double value) {
        return String.format(java.util.Locale.ROOT, " %s=%.3f", name, value);
    }

    /** SplitMix64, as in the Rust half. */
    static final class Random {
        long state;

        Random(long seed) {
            state = seed;
        }

        long between(long from, long to) {
            state += 0x9e3779b97f4a7c15L;
            long z = state;
            z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
            z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
            z ^= z >>> 31;
            // The high half of the unsigned product.
            long span = to - from;
            return from + Math.multiplyHigh(z, span) + ((z >> 63) & span);
        }
    }

    /** How late entries ran: 64 buckets per power of two, one shard per thread. */
    static final class Lateness {
        static final int SUB_BITS = 6;
        static final int BUCKETS = (64 - SUB_BITS + 1) << SUB_BITS;

        static final class Shard {
            final int[] buckets = new int[BUCKETS];
            volatile long count;
            long early;
            long max;
            long lastRan;
        }

        final List<Shard> shards = new ArrayList<>();
        final ThreadLocal<Shard> own = ThreadLocal.withInitial(() -> {
            Shard shard = new Shard();
            shard.lastRan = Long.MIN_VALUE;
            synchronized (shards) {
                shards.add(shard);
            }
            return shard;
        });

        Runnable job(long due) {
            return () -> record(due, System.nanoTime());
        }

        void record(long due, long now) {
            Shard shard = own.get();
            long late = Math.max(0, now - due);
            if (now < due) {
                shard.early++;
            }
            shard.buckets[bucketOf(late)]++;
            shard.max = Math.max(shard.max, late);
            shard.lastRan = now;
            // Ordered, not fenced: only this thread writes.
            COUNT.setRelease(shard, (long) COUNT.get(shard) + 1);
        }

        static final java.lang.invoke.VarHandle COUNT;

        static {
            try {
                COUNT = java.lang.invoke.MethodHandles.lookup().findVarHandle(Shard.class, "count", long.class);
            } catch (ReflectiveOperationException impossible) {
                throw new ExceptionInInitializerError(impossible);
            }
        }

        long count() {
            synchronized (shards) {
                return shards.stream().mapToLong(shard -> shard.count).sum();
            }
        }

        long lastRan() {
            return shards.stream().mapToLong(shard -> shard.lastRan).max().getAsLong();
        }

        void waitFor(int entries, long from) throws Exception {
            sleepUntil(from);
            while (count() < entries) {
                if (System.nanoTime() - from > 120 * SECOND) {
                    throw new IllegalStateException(count() + " of " + entries + " entries ran within two minutes");
                }
                Thread.sleep(1);
            }
        }

        String line() {
            long early = shards.stream().mapToLong(shard -> shard.early).sum();
            return value("p50_us", quantile(0.5)) + value("p99_us", quantile(0.99)) + value("p999_us", quantile(0.999))
                + value("max_us", max() / 1e3) + value("early", early);
        }

        long max() {
            return shards.stream().mapToLong(shard -> shard.max).max().getAsLong();
        }

        double quantile(double quantile) {
            long rank = Math.max(1, (long) Math.ceil(count() * quantile));
            long seen = 0;
            for (int index = 0; index < BUCKETS; index++) {
                for (Shard shard : shards) {
                    seen += shard.buckets[index];
                }
                if (seen >= rank) {
                    return valueOf(index) / 1e3;
                }
            }
            return max() / 1e3;
        }

        static int bucketOf(long value) {
            if (value < 1 << SUB_BITS) {
                return (int) value;
            }
            int shift = 63 - Long.numberOfLeadingZeros(value) - SUB_BITS;
            return (shift << SUB_BITS) + (int) (value >>> shift);
        }

        static long valueOf(int bucket) {
            if (bucket < 2 << SUB_BITS) {
                return bucket;
            }
            int shift = (bucket >> SUB_BITS) - 1;
            long low = ((bucket & ((1L << SUB_BITS) - 1)) | 1L << SUB_BITS) << shift;
            return low + (1L << shift) / 2;
        }
    }
}
