package dataset

import (
	"net/url"
	"strings"
	"time"
)

// Passage is what came to a node from one place in one fetch, or what a probe of that place found.
type Passage struct {
	// From is the origin of a source, the URL of a node that serves others, FromNodes for several of these, or FromDisk.
	From string `json:"from"`
	// Bytes came in Seconds, in which at least one transfer was under way, by this many connections at once. All are 0 for a probe.
	Bytes   int64   `json:"bytes,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Streams int     `json:"streams,omitempty"`
	// RoundTripSeconds is the shortest time of connecting; 0: nobody measured it.
	RoundTripSeconds float64 `json:"round_trip_seconds,omitempty"`
	// At is when it ended, by the clock of its node.
	At time.Time `json:"at"`
}

// Places of passages that are no origin.
const (
	FromNodes = "nodes" // several nodes, of which nobody knows which sent what
	FromDisk  = "disk"  // the node's own: what it has copied is verified
)

// Fetched is how a node came by all files of a dataset that it did not have.
type Fetched struct {
	// Seconds are all that it took, and At is when it ended, by the clock of the node.
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
	// SourceBytes and PeerBytes came meanwhile.
	SourceBytes int64 `json:"source_bytes,omitempty"`
	PeerBytes   int64 `json:"peer_bytes,omitempty"`
}

// ServerOf is the server that a URL names: root://host:1094. It is "" for what is no URL of a server.
func ServerOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"root": "1094", "http": "80", "https": "443"}[u.Scheme]
	}
	if port == "" {
		return ""
	}
	u.Host = strings.TrimSuffix(u.Host, ":"+u.Port()) // brackets of IPv6 stay
	return u.Scheme + "://" + strings.TrimSuffix(u.Host, ":") + ":" + port
}
