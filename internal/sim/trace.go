package sim

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%12s  %s\n", w.now.Sub(epoch), fmt.Sprintf(format, args...))
	}
}

// operations is a list of operations for people, worked out when it is printed.
type operations []lifecycle.Operation

func (ops operations) String() string {
	if ops == nil {
		return "once more"
	}
	var texts []string
	for _, op := range ops {
		switch op := op.(type) {
		case lifecycle.Emit:
			texts = append(texts, fmt.Sprintf("event %s: %s", op.Reason, op.Message))
		case lifecycle.WakeAt:
			texts = append(texts, "look again at "+op.Time.Sub(epoch).String())
		case lifecycle.Hold:
			texts = append(texts, hold(op))
		default:
			texts = append(texts, fmt.Sprintf("%s%+v", strings.TrimPrefix(fmt.Sprintf("%T", op), "lifecycle."), op))
		}
	}
	return strings.Join(texts, "; ")
}

func hold(op lifecycle.Hold) string {
	var texts []string
	for _, a := range op.Assignments {
		texts = append(texts, fmt.Sprintf("%s rank %d on %s %v %s", a.ID, a.Rank, a.Node, a.Slots, a.Address))
	}
	text := "Hold{" + strings.Join(texts, ", ") + "}"
	if len(op.Spares) > 0 {
		text += fmt.Sprintf(" in the room of %v", op.Spares)
	}
	return text
}
