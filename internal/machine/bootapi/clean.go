package bootapi

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// maxSteps bounds the steps of a cleaning; the largest servers have about a hundred disks.
const maxSteps = 512

// maxExpect bounds how long a machine may have nothing new to report: the longest time that a disk can say it needs (ACS-3, words 89 and 90).
const maxExpect = 0x7fff * 2 * time.Minute

// toldEvery is the pause between two times that the leader is woken by further bytes of a cleaning.
const toldEvery = 10 * time.Second

// cleanOrder is what a boot that cleans is to do; nil: nothing was decided for it, so nothing is erased.
func cleanOrder(m *state.Machine) *boot.CleanOrder {
	c := m.Record.Cleaning
	if c == nil || c.Generation != m.Record.Boot.Generation {
		return nil
	}
	order := &boot.CleanOrder{DryRun: c.DryRun, WasOff: c.WasOff}
	if m.Hardware != nil {
		order.Variables, order.Disks = m.Hardware.FirmwareVariables, m.Hardware.Disks
	}
	return order
}

// clean takes down how far a cleaning is.
func (s *Server) clean(w http.ResponseWriter, r *http.Request) {
	claims, err := s.session(r)
	if err == nil && (claims.Machine == "" || claims.Purpose != api.BootClean) {
		err = refuse(http.StatusForbidden, "this boot is not one that cleans")
	}
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	report, err := read[boot.CleanReport](w, r, maxReportBytes)
	if err == nil {
		report, err = boundedClean(report)
	}
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	s.cfg.Heard.cleaned(claims.Machine, claims.Generation, report, s.cfg.SiteTime())
	s.answer(w, r, s.instruct(claims, report.Done), nil)
}

// boundedClean is a report whose texts can be stored and shown; the error tells what is too large.
func boundedClean(report boot.CleanReport) (boot.CleanReport, error) {
	if len(report.Steps) > maxSteps {
		return report, refuse(http.StatusRequestEntityTooLarge, "the cleaning has %d steps; at most %d are possible", len(report.Steps), maxSteps)
	}
	for i := range report.Steps {
		s := &report.Steps[i]
		for _, text := range []*string{(*string)(&s.Kind), &s.Target, &s.Model, &s.Serial, (*string)(&s.State), &s.Method, &s.Verified, &s.Message} {
			*text = clip(*text)
		}
		for _, list := range [][]string{s.Fallbacks, s.Tried} {
			for j := range list {
				list[j] = clip(list[j])
			}
		}
	}
	if report.Hardware != nil {
		bound, err := bounded(boot.Report{Hardware: *report.Hardware})
		if err != nil {
			return report, err
		}
		bound.Hardware.EnrollmentToken = ""
		report.Hardware = &bound.Hardware
	}
	if math.IsNaN(report.ExpectSeconds) {
		report.ExpectSeconds = 0
	}
	data, err := json.Marshal(report)
	if err != nil {
		return report, fmt.Errorf("measure a report: %w", err)
	}
	if len(data) > maxReportBytes {
		return report, refuse(http.StatusRequestEntityTooLarge, "the report has %d bytes; at most %d are possible", len(data), maxReportBytes)
	}
	return report, nil
}

// cleaned notes how far a cleaning is.
func (h *Heard) cleaned(uid string, generation int64, report boot.CleanReport, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.of(uid, generation)
	if b == nil {
		return
	}
	h.heardOf(b, now)
	was := b.seen.Clean
	if was != nil && was.Done {
		return
	}
	expect := min(max(report.ExpectSeconds, 0), maxExpect.Seconds())
	is := &lifecycle.CleanSeen{
		DryRun: report.DryRun, Done: report.Done, Bytes: report.Bytes, TotalBytes: report.TotalBytes, Steps: report.Steps,
		ProgressAt: now, Expect: time.Duration(expect * float64(time.Second)),
	}
	news := was == nil || report.Done || !lifecycle.SameSteps(was.Steps, is.Steps)
	if !news && is.Bytes <= was.Bytes {
		is.ProgressAt = was.ProgressAt
	}
	b.seen.Clean = is
	if report.Done {
		b.cleaned = report.Hardware
	}
	if news || is.ProgressAt.Sub(b.cleanTold) >= toldEvery {
		b.cleanTold = now
		h.tell()
	}
}
