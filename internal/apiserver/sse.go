package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// writeTimeout is how long a client may leave a stream's bytes untaken before it is dropped.
const writeTimeout = 20 * time.Second

// eventStream writes server-sent events (WHATWG HTML, section 9.2).
type eventStream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// beginEvents sends the header; errors of the request must have been answered before.
func beginEvents(w http.ResponseWriter) *eventStream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx must not hold events back
	w.WriteHeader(http.StatusOK)
	return &eventStream{w: w, rc: http.NewResponseController(w)}
}

// send writes one event; flush sends what was written.
func (s *eventStream) send(event string, id int64, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode event %q: %w", event, err)
	}
	return s.sendText(event, id, text)
}

// sendShown writes an event about a cluster.
func (s *eventStream) sendShown(event string, id int64, c *shown) error {
	text, err := c.encoded()
	if err != nil {
		return fmt.Errorf("encode event %q: %w", event, err)
	}
	return s.sendText(event, id, text)
}

func (s *eventStream) sendText(event string, id int64, text []byte) error {
	s.deadline()
	_, err := fmt.Fprintf(s.w, "id: %d\nevent: %s\ndata: %s\n\n", id, event, text) // JSON holds no line break
	return err
}

func (s *eventStream) flush() error {
	s.deadline()
	return s.rc.Flush()
}

// keepAlive sends a comment, so that both ends notice when the other is gone.
func (s *eventStream) keepAlive() error {
	s.deadline()
	if _, err := fmt.Fprint(s.w, ": keep-alive\n\n"); err != nil {
		return err
	}
	return s.rc.Flush()
}

func (s *eventStream) deadline() {
	// A writer without deadlines (tests) has none to miss.
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
}
