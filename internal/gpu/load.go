package gpu

import (
	"bytes"
	"context"
	"encoding/csv"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

const (
	// loadEvery is the pause between two looks at how busy GPUs are, loadLooks how many of them make a load: nvidia-smi tells of at most the last second.
	loadEvery = 15 * time.Second
	loadLooks = 4
)

// Meter looks from time to time how busy NVIDIA's GPUs of a node are. Others have no load that is known.
type Meter struct {
	node *Node

	mu sync.Mutex
	// looks are the last ones, the oldest first.
	looks []map[string]float64
}

// NewMeter returns a meter of a node's GPUs. Nothing is known before Run.
func NewMeter(n *Node) *Meter { return &Meter{node: n} }

// Run looks until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for {
		text, err := m.node.ask(ctx, "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits")
		if err != nil && ctx.Err() == nil && !notFound(err) {
			m.node.cfg.Log.Log(ctx, slog.LevelInfo, "how busy the GPUs are can't be read", "error", err)
		}
		m.take(busyOf(text, err))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Meter) take(look map[string]float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks = append(m.looks, look)
	m.looks = m.looks[max(0, len(m.looks)-loadLooks):]
}

// Loads are the parts of the last minute in which GPUs calculated, by ID, of those that each look of that minute found.
func (m *Meter) Loads() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.looks) < loadLooks {
		return nil
	}
	loads := map[string]float64{}
	for id := range m.looks[0] {
		sum, found := 0.0, 0
		for _, look := range m.looks {
			if busy, ok := look[id]; ok {
				sum, found = sum+busy, found+1
			}
		}
		if found == len(m.looks) {
			loads[id] = sum / float64(found)
		}
	}
	return loads
}

// busyOf reads lines of a UUID and a percentage; GPUs of which the driver does not know it, such as those in MIG mode, are missing.
func busyOf(text []byte, err error) map[string]float64 {
	busy := map[string]float64{}
	if err != nil {
		return busy
	}
	reader := csv.NewReader(bytes.NewReader(text))
	reader.TrimLeadingSpace, reader.FieldsPerRecord = true, 2
	rows, err := reader.ReadAll()
	if err != nil {
		return busy
	}
	for _, row := range rows {
		if percent, err := strconv.Atoi(known(row[1])); err == nil && percent >= 0 && percent <= 100 && uuidText.MatchString(row[0]) {
			busy[row[0]] = float64(percent) / 100
		}
	}
	return busy
}
