/* Prague's lock vector and group buffers as a Promela model, written from the paper and not from the Python machine.
 *
 * Any group of SIZE of N workers may be drawn while fewer than MAX groups are outstanding. Groups stand in one list in
 * the order of drawing; `members` are all members of a group, `runs` those of a running group
 * that are not done. A group starts when no member stands in an earlier group of either kind. The list without holes is
 * the state and every transition is one d_step, so "states, stored" is the number of reachable states. MASKS is 2^N,
 * N <= 5, MAX <= 4.
 *
 *   spin -a -DN=3 -DMASKS=8 -DSIZE=2 -DMAX=3 lock_vector.pml
 *   gcc -O2 -DNOREDUCE -DSAFETY -o pan pan.c && ./pan -m1000000
 */
byte members[MAX];  /* bit w: worker w is a member */
byte runs[MAX];     /* bit w: the group runs and worker w is not done; 0 for a group that has not started */
byte count;
hidden byte own;
hidden byte i;
hidden byte taken;

#define RUNS(i, w) (((i) < MAX -> runs[((i) < MAX -> (i) : 0)] : 0) >> (w) & 1)
#define IN_RUNNING(w) (RUNS(0, w) + RUNS(1, w) + RUNS(2, w) + RUNS(3, w) > 0)

inline start_all() {
  i = 0; taken = 0;
  do
  :: i < count ->
       if
       :: runs[i] == 0 && (members[i] & taken) == 0 -> runs[i] = members[i]
       :: else -> skip
       fi;
       taken = taken | (runs[i] != 0 -> runs[i] : members[i]);
       i++
  :: else -> break
  od;
  i = 0; taken = 0
}

#define BIT(m, w) (((m) >> (w)) & 1)
#define SIZE_OF(m) (BIT(m, 0) + BIT(m, 1) + BIT(m, 2) + BIT(m, 3) + BIT(m, 4))

/* Process m < MASKS draws the group with the members m. */
active [MASKS] proctype draw() {
  do
  :: d_step {
       (SIZE_OF(_pid) == SIZE && count < MAX) ->
       members[count] = _pid;
       runs[count] = 0;
       count++;
       start_all()
     }
  od
}

/* Process MASKS + w is worker w being done with its running group; the last member ends the group. */
active [N] proctype done() {
  do
  :: d_step {
       (IN_RUNNING(_pid - MASKS)) ->
       own = 1 << (_pid - MASKS);
       i = 0;
       do
       :: (runs[i] & own) == 0 -> i++
       :: else -> break
       od;
       runs[i] = runs[i] ^ own;
       if
       :: runs[i] == 0 ->  /* close the hole */
            do
            :: i + 1 < count -> members[i] = members[i + 1]; runs[i] = runs[i + 1]; i++
            :: else -> break
            od;
            count--;
            members[count] = 0;
            runs[count] = 0
       :: else -> skip
       fi;
       own = 0;
       start_all()
     }
  od
}
