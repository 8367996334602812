package paths

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

// Cold is what a member has read through a cache that had nothing of it. The cache fetched by one connection.
type Cold struct {
	// SizeBytes is that of the dataset, in so many files.
	SizeBytes int64
	Files     int
	// Bytes were read, with so many waits of Seconds in all.
	Bytes   int64
	Waits   int64
	Seconds float64
	// BlockBytes is what the cache fetched at once.
	BlockBytes int64
	At         time.Time
}

// LearnConnection returns what is known of a path after a cold reading: the rate of one connection, where bytes explain enough of the time. Losses bound each
// connection by itself, and copies, of which the path's rate is known, have several.
func LearnConnection(known api.DataPath, from string, c Cold) api.DataPath {
	if c.Bytes < tellingBytes || c.Waits <= 0 || c.SizeBytes <= 0 || known.RoundTripAt == nil || !newer(c.At, known.ConnectionAt) {
		return known
	}
	size := float64(c.SizeBytes)
	work := predict.Work{Bytes: size, Reads: min(1, float64(c.Bytes)/size), Reader: predict.Reader{RequestBytes: float64(c.Bytes) / float64(c.Waits)}}
	fetched := work.Touched(float64(c.BlockBytes)) * size
	opening := readerTrips(from) * float64(c.Files)
	rate, least := predict.RateOf(fetched, c.Seconds, known.RoundTripSeconds, predict.Flow{Trips: opening + float64(c.Waits), Streams: 1})
	if rate <= 0 || least { // round trips explain it
		return known
	}
	at := c.At
	known.ConnectionBytesPerSecond = blend(known.ConnectionBytesPerSecond, known.ConnectionAt, rate, at)
	known.ConnectionAt = &at
	return known
}
