package api

import "time"

// AuditRecord is a line of the audit log: a change that somebody asked for, or something that they were refused.
type AuditRecord struct {
	// Seq numbers the records from 1 on, without a gap.
	Seq int64     `json:"seq"`
	At  time.Time `json:"at"`
	// User, Project and Role are who asked, by the token with this ID; empty for somebody unknown. Of a node's agent, Node is the node and Token the
	// ID of its identity. From is the address they asked from, or "socket".
	User    string `json:"user,omitempty"`
	Node    string `json:"node,omitempty"`
	Token   string `json:"token,omitempty"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role,omitempty"`
	From    string `json:"from,omitempty"`
	// Action is the method and path of the request, or what the server did to the log itself. Object is what was made by it.
	Action string `json:"action"`
	Object string `json:"object,omitempty"`
	// Status is that of the answer (HTTP), Code its error code. Request is the ID by which the server's log has it.
	Status  int    `json:"status,omitempty"`
	Code    string `json:"code,omitempty"`
	Request string `json:"request,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Refused counts refusals of strangers since the record before that came too fast to be recorded one by one. Lost counts records since then
	// that could not be written.
	Refused int64 `json:"refused,omitempty"`
	Lost    int64 `json:"lost,omitempty"`
	// Removed is the newest of the oldest records that were removed, RemovedMAC its MAC: the log begins after it.
	Removed    int64  `json:"removed,omitempty"`
	RemovedMAC string `json:"removed_mac,omitempty"`
	// MAC binds the record to the one before (HMAC-SHA256, RFC 2104), in hexadecimal.
	MAC string `json:"mac,omitempty"`
}

// AuditReport is the result of a verification of the audit log.
type AuditReport struct {
	// Records were verified, from First to Last by number.
	Records int64 `json:"records"`
	First   int64 `json:"first"`
	Last    int64 `json:"last"`
	// Lost are records that could not be written when they were due, by the log's own account.
	Lost int64 `json:"lost"`
	// Problems tell what is wrong, and where; none when every record is as it was written.
	Problems []string `json:"problems"`
}
