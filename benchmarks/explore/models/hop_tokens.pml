/* Hop's token queues as a Promela model, written from the paper and not from the Python machine.
 *
 * N workers; worker i sends updates to (i + O1) % N and, with DEG = 2, to (i + O2) % N. One first-in-first-out channel
 * per ordered pair carries updates and tokens. Steps are counted from the slowest worker, so that the state space is
 * finite. After `setup` every transition is one d_step and every process waits at its loop head, so "states, stored" is
 * the number of reachable states of the protocol plus one, the state before `setup`. Compile without reduction:
 *
 *   spin -a -DN=3 -DDEG=1 -DO1=1 -DO2=0 -DMAXIG=2 hop_tokens.pml
 *   gcc -O2 -DNOREDUCE -DSAFETY -o pan pan.c && ./pan -m1000000
 */
#define UPDATE 0
#define TOKEN 1
#define ROOM (2 * MAXIG + 2 * N + 2)

#define OFF(d) ((d) == 0 -> O1 : O2)
#define TARGET(u, d) (((u) + OFF(d)) % N)
#define SOURCE(v, d) (((v) + N - OFF(d)) % N)
#define EDGE(u, v) ((u) * DEG + (((u) + O1) % N == (v) -> 0 : 1))

byte step[N];          /* counted from the slowest worker */
byte held[N * DEG];    /* updates that arrived along an edge and wait to be used */
byte tokens[N * DEG];  /* tokens in hand at the sender of an edge, given by its receiver */
bit running;
chan line[N * N] = [ROOM] of { bit };
hidden byte d;
hidden byte k;
hidden byte m;

#define RECEIVED(v, d) (held[EDGE(SOURCE(v, d), v)] > 0)
#define PAID(u, d) (tokens[(u) * DEG + (d)] > 0)

active [N] proctype worker() {
  do
  :: d_step {
       (running && RECEIVED(_pid, 0) && RECEIVED(_pid, DEG - 1) && PAID(_pid, 0) && PAID(_pid, DEG - 1)) ->
       step[_pid]++;
       d = 0;
       do
       :: d < DEG ->
            held[EDGE(SOURCE(_pid, d), _pid)]--;
            tokens[_pid * DEG + d]--;
            d++
       :: else -> break
       od;
       d = 0;
       do  /* the update of the new step to every target, */
       :: d < DEG -> line[_pid * N + TARGET(_pid, d)]!UPDATE; d++
       :: else -> break
       od;
       d = 0;
       do  /* one token to every source */
       :: d < DEG -> line[_pid * N + SOURCE(_pid, d)]!TOKEN; d++
       :: else -> break
       od;
       k = 0;
       do
       :: k < N && step[k] > 0 -> k++
       :: else -> break
       od;
       if
       :: k == N ->
            k = 0;
            do
            :: k < N -> step[k]--; k++
            :: else -> break
            od
       :: else -> skip
       fi;
       d = 0; k = 0
     }
  od
}

/* Process N + p moves the messages of channel p, from worker p / N to worker p % N. */
active [N * N] proctype link() {
  do
  :: d_step {
       (running && len(line[_pid - N]) > 0) ->
       line[_pid - N]?m;
       if
       :: m == UPDATE -> held[EDGE((_pid - N) / N, (_pid - N) % N)]++
       :: else -> tokens[EDGE((_pid - N) % N, (_pid - N) / N)]++
       fi;
       m = 0
     }
  od
}

active proctype setup() {
  d_step {
    k = 0;
    do
    :: k < N ->
         d = 0;
         do
         :: d < DEG ->
              tokens[k * DEG + d] = MAXIG;
              line[k * N + TARGET(k, d)]!UPDATE;
              d++
         :: else -> break
         od;
         k++
    :: else -> break
    od;
    d = 0; k = 0;
    running = 1
  }
  (0)
}
