package bootapi

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// withExpiry makes the claims of a session from those of a boot token.
func withExpiry(c boot.TokenClaims, at time.Time) boot.TokenClaims {
	c.ExpiresAt = at
	return c
}

// What machines are told to do (boot.Instruction.Do).
const (
	doContinue = "continue"
	doWait     = "wait"
	doReboot   = "reboot"
	doPowerOff = "poweroff"
)

// How often a machine asks again: one that is about to be told, one that somebody looks at, and a stranger.
const (
	soonSeconds     = 1
	failedSeconds   = 30
	warmSeconds     = 2
	strangerSeconds = 5
)

// stage takes down how far a boot is.
func (s *Server) stage(w http.ResponseWriter, r *http.Request) {
	claims, err := s.session(r)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	report, err := read[boot.StageReport](w, r, maxStageBytes)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	report.Problem = clip(report.Problem)
	if claims.Machine != "" {
		s.cfg.Heard.stage(claims.Machine, claims.Generation, report, s.cfg.SiteTime())
	} else {
		s.cfg.Heard.strangerTrouble(claims.MAC, report.Problem)
	}
	told := s.instruct(claims, false)
	if told.Do == doContinue && report.Local && !s.writtenDown(claims) {
		told = &boot.Instruction{Do: doWait, RetrySeconds: soonSeconds}
	}
	s.answer(w, r, told, nil)
}

// writtenDown tells whether the record has it that the machine's root is wholly local. What was only heard goes with this process.
func (s *Server) writtenDown(claims boot.TokenClaims) bool {
	m := s.cfg.Reader.View().MachineByUID(claims.Machine)
	return m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Local
}

// report takes down what a machine is made of.
func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	claims, err := s.session(r)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	report, err := read[boot.Report](w, r, maxReportBytes)
	if err == nil {
		report, err = bounded(report)
	}
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	if claims.Machine == "" {
		s.answer(w, r, s.instruct(claims, true), s.candidate(r.Context(), r.RemoteAddr, claims, report))
		return
	}
	report.Hardware.EnrollmentToken = ""
	s.cfg.Heard.reported(claims.Machine, claims.Generation, report, s.cfg.SiteTime())
	s.answer(w, r, s.instruct(claims, true), nil)
}

// candidate stores a stranger for operators to see. Its enrolment token is a secret: the leader gets it, the record does not.
func (s *Server) candidate(ctx context.Context, from string, claims boot.TokenClaims, report boot.Report) error {
	token := report.Hardware.EnrollmentToken
	report.Hardware.EnrollmentToken = ""
	if s.cfg.Reader.View().MachineByMAC(claims.MAC) != nil {
		return nil
	}
	view := s.cfg.Reader.View()
	known := view.Candidate(claims.MAC)
	if known == nil && len(view.Candidates) >= maxCandidates {
		return refuse(http.StatusServiceUnavailable, "%d machines already wait to be enrolled; see: nearmetal node candidates", len(view.Candidates))
	}
	// It reports every few seconds: only what is new, or has not been said for a while, is worth a write.
	now := s.cfg.SiteTime()
	if known == nil || known.Hardware == nil || now.Sub(known.LastSeenAt) > time.Minute {
		_, err := s.cfg.Writer.UpsertCandidate(ctx, claims.MAC, func(c *api.Candidate) {
			c.MAC, c.Hardware, c.LastSeenAt = claims.MAC, &report.Hardware, now
			if address, err := netip.ParseAddrPort(from); err == nil {
				c.Address = address.Addr().Unmap()
			}
			if c.FirstSeenAt.IsZero() {
				c.FirstSeenAt = now
			}
		})
		if err != nil {
			return err
		}
	}
	s.cfg.Heard.stranger(Stranger{MAC: claims.MAC, Token: token, Hardware: report.Hardware})
	return nil
}

// instruct tells a machine what to do next, by what was decided about it, and remembers whom it told to go off: the silence of such a machine
// may be all that tells that it did.
func (s *Server) instruct(claims boot.TokenClaims, reported bool) *boot.Instruction {
	view := s.cfg.Reader.View()
	m := view.MachineByUID(claims.Machine)
	if claims.Machine == "" {
		m = view.MachineByMAC(claims.MAC)
	}
	told := s.goesOn(m, claims, decided(m, claims, reported))
	if m != nil && told.Do == doPowerOff {
		s.cfg.Heard.toldOff(m.UID(), s.cfg.SiteTime())
	}
	return told
}

// nextPatience is how long a machine that goes on from its boot agent waits for network boot to know of its boot. Then its firmware asks.
const nextPatience = 10 * time.Second

// goesOn adds what a machine boots that was warm: it starts that itself.
func (s *Server) goesOn(m *state.Machine, claims boot.TokenClaims, told *boot.Instruction) *boot.Instruction {
	if told.Do != doReboot || m == nil || s.cfg.Next == nil {
		return told
	}
	b := m.Record.Boot
	if b == nil || !b.Warm || b.RedeemedAt != nil {
		return told
	}
	if told.Next = s.cfg.Next(claims.MAC, claims.Port, b.Generation); told.Next == nil && s.cfg.SiteTime().Before(b.DecidedAt.Add(nextPatience)) {
		return &boot.Instruction{Do: doWait, RetrySeconds: soonSeconds}
	}
	return told
}

// decided is what a machine is to do; nil: it is not known.
func decided(m *state.Machine, claims boot.TokenClaims, reported bool) *boot.Instruction {
	unknown := m == nil || m.Record == nil
	switch {
	case unknown && claims.Machine == "":
		return &boot.Instruction{Do: doWait, RetrySeconds: strangerSeconds, Message: "waiting to be enrolled: nearmetal node enroll NAME --candidate " + claims.MAC}
	case unknown:
		return &boot.Instruction{Do: doPowerOff, Message: "this machine was removed from the site"}
	case claims.Machine == "":
		return instructKnown(m, "this machine is "+m.Name()+" now")
	}
	r := m.Record
	if r.Boot == nil || r.Boot.Generation != claims.Generation {
		return instructKnown(m, "a newer order replaced this boot")
	}
	switch r.Phase {
	case api.MachineStopping, api.MachineRemoving, api.MachineOff, api.MachineEnrolled:
		return &boot.Instruction{Do: doPowerOff, Message: "powering off"}
	case api.MachineFailed:
		return &boot.Instruction{Do: doWait, RetrySeconds: failedSeconds, Message: r.Message}
	case api.MachineWarm:
		return &boot.Instruction{Do: doWait, RetrySeconds: warmSeconds}
	}
	if reported {
		return &boot.Instruction{Do: doWait, RetrySeconds: soonSeconds, Message: "the report is stored"}
	}
	return &boot.Instruction{Do: doContinue}
}

// instructKnown is for a machine that runs something it is no longer meant to run.
func instructKnown(m *state.Machine, why string) *boot.Instruction {
	if lifecycle.MayBoot(m.Record) {
		return &boot.Instruction{Do: doReboot, Message: why}
	}
	if m.Intent.Inspect > m.Record.DoneInspect || m.Intent.Request.Number > m.Record.DoneRequest {
		return &boot.Instruction{Do: doWait, RetrySeconds: soonSeconds, Message: why}
	}
	return &boot.Instruction{Do: doPowerOff, Message: why}
}
