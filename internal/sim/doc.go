// Package sim lives through whole sites on a virtual clock: the real controller, planners, provisioner, power gate, monitor, agent streams,
// state and boot API, against nodes, machines, BMCs, users and people that are modelled. Users create, scale, pause, extend and delete
// clusters and run jobs in them; operators drain nodes, power machines, enrol and remove them. Everything goes wrong between them that does:
// members that end, machines that die, networks cut one way or both, messages that come late, agents that sleep, BMCs that lie or are deaf,
// firmware that hangs, clocks that jump, commits of unknown outcome, servers that crash between two writes or go on believing that they lead.
//
// Each commit is looked at when it becomes true (witness_test.go), and the whole site whenever it has come to rest for a moment (check_*_test.go).
// When nothing goes wrong any more, everything must come to where it was asked to be, and leave nothing behind. A run follows from its
// settings, one word, but for the order of what several goroutines do at one moment: a failure is made smaller (shrink_test.go) and replayed by
// it, at the second try perhaps.
//
// All of it is tests: the virtual clock is that of testing/synctest. Start with world_test.go, then server_test.go and agent_test.go.
package sim
