package api

import "time"

// DataPath is what is known of the way of data from a place to a node.
type DataPath struct {
	// From is where the data come from: the origin of a source such as root://host:1094, node/NAME, or "nodes" for several nodes at once. "disk" is how the
	// node verifies what it has copied.
	From string `json:"from"`
	// BytesPerSecond is the rate of one transfer that has the path for itself; 0: not known. It was measured at RateAt, the last of Transfers times.
	BytesPerSecond float64    `json:"bytes_per_second,omitempty"`
	RateAt         *time.Time `json:"rate_at,omitempty"`
	Transfers      int        `json:"transfers,omitempty"`
	// RoundTripSeconds is the time of connecting; 0: not known. It was measured at RoundTripAt.
	RoundTripSeconds float64    `json:"round_trip_seconds,omitempty"`
	RoundTripAt      *time.Time `json:"round_trip_at,omitempty"`
}

// DataPaths are the ways of data to a node, in the order of From.
type DataPaths struct {
	Node  string     `json:"node"`
	Paths []DataPath `json:"paths"`
}

// DataOutcome is a prediction beside what came of it.
type DataOutcome struct {
	Node string `json:"node"`
	// Dataset is shown by explanations of clusters, and not stored.
	Dataset string `json:"dataset,omitempty"`
	// Choice is copy or peer; or cold cache or warm cache, of what a member has read.
	Choice string `json:"choice"`
	// Member is the assignment ID of the member that has read it; empty: it was fetched for all of the node.
	Member string `json:"member,omitempty"`
	// Groups are those that had members there for which the data were fetched, as CLUSTER/GROUP; none: a replica was asked for.
	Groups []string `json:"groups,omitempty"`
	// Bytes were fetched or read. PredictedBytes are those that a member was predicted to read; 0: nothing was predicted of that.
	Bytes          int64 `json:"bytes"`
	PredictedBytes int64 `json:"predicted_bytes,omitempty"`
	// PredictedSeconds is what was predicted when the node began, or when the member got its place. Seconds is what it took: of a reader, those in which it
	// waited for answers of its node's cache. Ratio is Seconds by PredictedSeconds.
	PredictedSeconds float64   `json:"predicted_seconds"`
	Seconds          float64   `json:"seconds"`
	Ratio            float64   `json:"ratio"`
	At               time.Time `json:"at"`
	// Unseen is why nobody knows what it took; it is shown, and not stored. Seconds, Ratio and At are none then.
	Unseen string `json:"unseen,omitempty"`
}

// DataErrors sum up what came of the predictions of a choice.
type DataErrors struct {
	Choice string `json:"choice"`
	Count  int    `json:"count"`
	// PredictedSeconds and Seconds are sums. MedianRatio is that of the newest outcomes, which are kept.
	PredictedSeconds float64 `json:"predicted_seconds"`
	Seconds          float64 `json:"seconds"`
	MedianRatio      float64 `json:"median_ratio"`
}

// DataOutcomes are the outcomes of predictions about a dataset: the newest ones, the last one last, and the sums of all.
type DataOutcomes struct {
	UID    string        `json:"uid"`
	Newest []DataOutcome `json:"newest"`
	Errors []DataErrors  `json:"errors"`
	// Readings are what the newest members have read through caches of their nodes, the newest one last.
	Readings []DataReading `json:"readings,omitempty"`
}

// DataReading is what a member has read of a dataset through the cache of its node, as far as its connections have ended.
type DataReading struct {
	// Member is its assignment ID, and Group is CLUSTER/GROUP.
	Member string `json:"member"`
	Group  string `json:"group"`
	Node   string `json:"node"`
	// Bytes were sent to it, and what it read twice counts twice. Fraction is what that is of the dataset's size, at most 1; 0: the size is not known.
	Bytes    int64   `json:"bytes"`
	Fraction float64 `json:"fraction,omitempty"`
	// Waits is how often it waited for an answer, and WaitedSeconds how long in all, added up over its connections.
	Waits         int64     `json:"waits,omitempty"`
	WaitedSeconds float64   `json:"waited_seconds,omitempty"`
	At            time.Time `json:"at"`
}

// DataReads is the fraction of a dataset that members read, as learned from Members of them; the newest one read at At.
type DataReads struct {
	Fraction float64   `json:"fraction"`
	Members  int       `json:"members"`
	At       time.Time `json:"at"`
	// BytesPerWait is what they read between two waits for an answer; 0: not known.
	BytesPerWait float64 `json:"bytes_per_wait,omitempty"`
}

// DataClaim is how a member reads a dataset for which its group leaves that open (DatasetAuto), and what that was predicted to take when it got its place.
type DataClaim struct {
	Name string `json:"name"`
	// Way is copy, stream or cached, and Choice the prediction that it was taken for: here, peer, copy, stream, cold cache or warm cache.
	Way    DatasetWay `json:"way"`
	Choice string     `json:"choice"`
	// Reads is the fraction of the dataset that the member was taken to read, and Bytes are that many bytes.
	Reads float64 `json:"reads"`
	Bytes int64   `json:"bytes,omitempty"`
	// Seconds is what was predicted; nil: nothing was, and Why says what came of that.
	Seconds *float64 `json:"seconds,omitempty"`
	Why     string   `json:"why"`
	// Options are all that there were, the taken one among them. Members of one group and node have the same, and the first of them alone lists these.
	Options []DataOption `json:"options,omitempty"`
}

// DataOption is a way that a member could have had, and what it was predicted to take.
type DataOption struct {
	Choice string `json:"choice"`
	// Seconds is the prediction; nil: there was none, or the way was not possible.
	Seconds *float64 `json:"seconds,omitempty"`
	// Sum is the prediction as a sum: sizes, rates, round trips, connections and readers at once. Figures say where these come from, and how old each was.
	Sum     string `json:"sum,omitempty"`
	Figures string `json:"figures"`
}

// DataChoice is a way in which members of a group on a node could have a dataset.
type DataChoice struct {
	Group   string `json:"group"`
	Node    string `json:"node"`
	Dataset string `json:"dataset"`
	// Choice is here, peer, copy, stream, cold cache or warm cache. Taken: members of the group on the node have it, or will have it, in this way.
	Choice string `json:"choice"`
	Taken  bool   `json:"taken,omitempty"`
	// Seconds are those that the choice is predicted to take; nil: what it depends on was never measured.
	Seconds *float64 `json:"seconds,omitempty"`
	// Joules are modelled: what the wait costs of the node's power. nil: nothing is known of that.
	Joules *float64 `json:"joules,omitempty"`
	// Sum is the prediction as a sum that can be added up by hand.
	Sum string `json:"sum,omitempty"`
	// Figures say what the prediction rests on, with the age of each figure, or what is missing.
	Figures string `json:"figures"`
}
