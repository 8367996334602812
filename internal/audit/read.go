package audit

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Filter says which records are asked for.
type Filter struct {
	// Before is a number that all of them are below; 0: all.
	Before int64
	// User names who asked; empty: anybody. Failed: only what was refused or failed.
	User   string
	Failed bool
	// Limit is how many at most, the newest first.
	Limit int
}

func (f Filter) wants(r *api.AuditRecord) bool {
	return (f.Before == 0 || r.Seq < f.Before) && (f.User == "" || r.User == f.User) && (!f.Failed || r.Status >= 400)
}

// List returns records, newest first. Lines that are no records are left out: Verify tells of them.
func (l *Log) List(f Filter) ([]api.AuditRecord, error) {
	files, err := l.files()
	if err != nil {
		return nil, err
	}
	found := []api.AuditRecord{}
	for _, path := range slices.Backward(files) {
		if first, err := seqOf(path); err != nil || f.Before > 0 && first >= f.Before {
			continue
		}
		var here []api.AuditRecord
		err := eachRecord(path, func(r *api.AuditRecord, _ []byte) error {
			if r != nil && f.wants(r) {
				here = append(here, *r)
				if len(here) > 2*f.Limit { // only the newest of a file are asked for
					here = append(here[:0], here[len(here)-f.Limit:]...)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		slices.Reverse(here)
		found = append(found, here...)
		if len(found) >= f.Limit {
			return found[:f.Limit], nil
		}
	}
	return found, nil
}

// mostProblems is how many problems a report lists.
const mostProblems = 20

// Verify reads the whole log and compares every record with what it was written as.
func (l *Log) Verify() (api.AuditReport, error) {
	report := api.AuditReport{Problems: []string{}}
	files, err := l.files()
	if err != nil {
		return report, err
	}
	l.mu.Lock()
	head := l.head // what is appended while this reads may be seen or not
	l.mu.Unlock()
	v := verifier{log: l, report: &report, removed: map[int64]string{}}
	for _, path := range files {
		v.file, v.line = filepath.Base(path), 0
		if err := eachRecord(path, v.take); err != nil {
			return report, err
		}
	}
	if report.Last < head.Seq {
		v.wrong("the log ends with record %d, and record %d was written", report.Last, head.Seq)
	}
	v.checkFirst()
	return report, nil
}

// verifier goes over records in their order.
type verifier struct {
	log    *Log
	report *api.AuditReport
	file   string
	line   int
	// first is the record that the log begins with, last the one before that which is looked at.
	first *api.AuditRecord
	last  Head
	// removed are the MACs of removed records, by number, by the log's own account.
	removed map[int64]string
}

func (v *verifier) wrong(format string, args ...any) {
	switch p := &v.report.Problems; {
	case len(*p) < mostProblems:
		*p = append(*p, fmt.Sprintf(format, args...))
	case len(*p) == mostProblems:
		*p = append(*p, "and more")
	}
}

func (v *verifier) take(r *api.AuditRecord, _ []byte) error {
	v.line++
	at := fmt.Sprintf("%s, line %d", v.file, v.line)
	if r == nil {
		v.wrong("%s is no record", at)
		return nil
	}
	v.report.Records++
	v.report.Lost += r.Lost
	if r.Removed > 0 {
		v.removed[r.Removed] = r.RemovedMAC
	}
	switch {
	case v.report.First == 0:
		v.report.First, v.first = r.Seq, r
	case r.Seq != v.last.Seq+1:
		v.wrong("%s: record %d follows record %d", at, r.Seq, v.last.Seq)
	case r.MAC != v.macOf(v.last.MAC, r):
		v.wrong("%s: record %d is not what was written", at, r.Seq)
	}
	v.report.Last = r.Seq
	v.last = Head{r.Seq, r.MAC}
	return nil
}

// checkFirst looks at the record that the log begins with. What came before it was removed, and a later record says which that was.
func (v *verifier) checkFirst() {
	if v.first == nil {
		return
	}
	before, removed := v.removed[v.first.Seq-1]
	switch {
	case v.first.Seq > 1 && !removed:
		v.wrong("the log begins with record %d, and no record says that those before it were removed for their age", v.first.Seq)
	case v.first.MAC != v.macOf(before, v.first):
		v.wrong("record %d, the first, is not what was written", v.first.Seq)
	}
}

func (v *verifier) macOf(before string, r *api.AuditRecord) string {
	bare := *r
	bare.MAC = ""
	line, err := json.Marshal(bare)
	if err != nil {
		return ""
	}
	mac, err := v.log.mac(before, bare.At, line)
	if err != nil {
		return ""
	}
	return mac
}
