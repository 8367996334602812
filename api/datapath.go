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
	// Choice is copy or peer.
	Choice string `json:"choice"`
	// Groups are those that had members there for which the data were fetched, as CLUSTER/GROUP; none: a replica was asked for.
	Groups []string `json:"groups,omitempty"`
	Bytes  int64    `json:"bytes"`
	// PredictedSeconds is what was predicted when the node began, and Seconds what it took. Ratio is Seconds by PredictedSeconds.
	PredictedSeconds float64   `json:"predicted_seconds"`
	Seconds          float64   `json:"seconds"`
	Ratio            float64   `json:"ratio"`
	At               time.Time `json:"at"`
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
}

// DataChoice is a way in which members of a group on a node could have a dataset.
type DataChoice struct {
	Group   string `json:"group"`
	Node    string `json:"node"`
	Dataset string `json:"dataset"`
	// Choice is here, peer, copy, stream or cache. Taken: members of the group on the node have it, or will have it, in this way.
	Choice string `json:"choice"`
	Taken  bool   `json:"taken,omitempty"`
	// Seconds are those that the choice is predicted to take; nil: what it depends on was never measured.
	Seconds *float64 `json:"seconds,omitempty"`
	// Joules are modelled: what the wait costs of the node's power. nil: nothing is known of that.
	Joules *float64 `json:"joules,omitempty"`
	// Figures say what the prediction rests on, with the age of each figure, or what is missing.
	Figures string `json:"figures"`
}
