package api

import "time"

// Trace is the time that each stage of a cluster's creation took, and of its deletion if it was deleted. It is kept in memory for recent clusters, by the server that leads.
type Trace struct {
	// Cluster is the cluster's name, UID its unique ID: of several clusters of one name this is the newest.
	Cluster string `json:"cluster"`
	UID     string `json:"uid"`
	// Spans are the stages that have ended, by the time of their beginning.
	Spans []TraceSpan `json:"spans"`
}

// TraceSpan is a stage that has ended.
type TraceSpan struct {
	// ID and Parent are OpenTelemetry span identifiers, 16 hexadecimal digits. The two roots, create and delete, have no parent.
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	Name   string `json:"name"`
	// Node is the node of the stage, empty for the server. Member is its member, empty for the whole cluster.
	Node   string `json:"node,omitempty"`
	Member string `json:"member,omitempty"`
	// Began is by the site's clock.
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Failure is the reason why the stage failed; empty: it did not.
	Failure string `json:"failure,omitempty"`
}
