package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// progress tells on the error stream how far something is: on a terminal as one line updated in place, else as a line for
// every change.
type progress struct {
	w        io.Writer
	terminal bool
	start    time.Time
	now      func() time.Time

	mu   sync.Mutex
	text string
	done chan struct{}
	over sync.WaitGroup
}

// tick is how often the elapsed time on a terminal is brought up to date.
const tick = 100 * time.Millisecond

func (a *app) progress() *progress {
	p := &progress{w: a.Streams.Err, start: a.Now(), now: a.Now, done: make(chan struct{})}
	p.terminal = onTerminal(a.Streams.Err)
	if p.terminal {
		p.over.Go(p.animate)
	}
	return p
}

// animate keeps the line current until stop.
func (p *progress) animate() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		case <-p.done:
			return
		}
	}
}

// draw writes the line in place; the lock is held.
func (p *progress) draw() {
	if p.text != "" {
		fmt.Fprintf(p.w, "\r\x1b[K%s  %.1fs", p.text, p.now().Sub(p.start).Seconds())
	}
}

// say tells a new state; repeating one says nothing.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text = printable(text)
	if text == p.text {
		return
	}
	p.text = text
	if p.terminal {
		p.draw()
	} else {
		fmt.Fprintf(p.w, "%6.1fs  %s\n", p.now().Sub(p.start).Seconds(), text)
	}
}

// keep tells something that stays: on a terminal in the place of the line that was updated.
func (p *progress) keep(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text = printable(text)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s\n", text)
		p.text = "" // what was told last is over
	} else {
		fmt.Fprintf(p.w, "%6.1fs  %s\n", p.now().Sub(p.start).Seconds(), text)
	}
}

// clear makes room on a terminal for what is told otherwise.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.text != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.text = ""
	}
}

// stop ends it and clears the line of a terminal.
func (p *progress) stop() {
	close(p.done)
	p.over.Wait()
	if p.terminal && p.text != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// state is one line about a cluster.
func stateLine(c api.Cluster) string {
	st := c.Status
	var text string
	if st.Phase == api.ClusterDeleting {
		text = fmt.Sprintf("cluster %s: %s, members left: %d", c.Name, st.Phase, len(st.Members))
	} else {
		text = fmt.Sprintf("cluster %s: %s, %d/%d members ready", c.Name, st.Phase, st.ReadyMembers, st.TotalMembers)
		if n := leaving(st.Members); n > 0 {
			text += fmt.Sprintf(", %d leaving", n)
		}
	}
	if moving := movingText(c); moving != "" {
		text += ", " + moving
	}
	if trouble := memberTrouble(st.Members); trouble != "" {
		text += " (" + trouble + ")"
	}
	return text
}

// leaving counts members that are being cleaned.
func leaving(members []api.MemberStatus) int {
	n := 0
	for _, m := range members {
		if m.Phase == api.MemberReleasing {
			n++
		}
	}
	return n
}

// memberTrouble names members that do not come along by themselves.
func memberTrouble(members []api.MemberStatus) string {
	var names []string
	for _, m := range members {
		if m.Moving != nil { // for a moment, nobody knows on which of two nodes it runs
			continue
		}
		switch m.Phase {
		case api.MemberFailed, api.MemberUnknown, api.MemberLost, api.MemberUnhealthy:
			names = append(names, m.Name+" "+string(m.Phase))
		default:
		}
	}
	if len(names) > 3 {
		names = append(names[:3], fmt.Sprintf("and %d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}
