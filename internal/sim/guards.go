package sim

// Guard is something that keeps a site sound; a run Without it must fail.
type Guard string

// The guards that a run can do without.
const (
	GuardElection   Guard = "election"       // a commit needs the leadership
	GuardConflict   Guard = "conflict"       // a commit needs intent and record to be as they were when it was decided
	GuardEpoch      Guard = "epoch"          // agents obey no former leader and no earlier state
	GuardTerm       Guard = "term"           // agents remember the highest term over their restarts
	GuardStream     Guard = "stream"         // a server listens to an agent's newest connection only
	GuardLooking    Guard = "looking"        // an agent confirms clean only what it looked for and did not find
	GuardConfirming Guard = "confirming"     // the leader frees only what was confirmed clean
	GuardLost       Guard = "lost hold"      // what a lost member had stays taken until it is clean
	GuardQuarantine Guard = "quarantine"     // the network of a quarantined member is not given to others
	GuardAddress    Guard = "address"        // an address is not given out again before its last holder is clean
	GuardFence      Guard = "fence"          // other nodes drop the node of a lost member from the network's peers
	GuardGrace      Guard = "grace"          // a new leader starts death timers anew
	GuardReported   Guard = "reported"       // what a node does not speak of counts only once it has told all
	GuardRecovery   Guard = "recovery"       // a member that ran through a restart of its agent may well be ready
	GuardGarbage    Guard = "garbage"        // a new leader removes chunks that no record names
	GuardCurrent    Guard = "current"        // what an agent does not know of is left alone until it has heard the leader
	GuardDebris     Guard = "debris"         // what the leader does not know of is cleaned
	GuardDeadline   Guard = "clean deadline" // what can't be cleaned is quarantined in time
	GuardEcho       Guard = "echo"           // an agent that hears nothing is not alive though its words arrive
	GuardUsage      Guard = "usage"          // usage is written in the commit that ends it
	GuardClock      Guard = "clock"          // a leader's clock never starts before the newest time stored
	GuardHead       Guard = "head"           // nothing that delays the head of the queue is started before it
	GuardQuota      Guard = "quota"          // a pass counts what it has admitted itself
	GuardSpare      Guard = "spare"          // nothing is carried out for a spare
	GuardDoubt      Guard = "doubt"          // a leader that does not know what it has given out steps down
)
