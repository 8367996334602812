package apiserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// connectConsole makes the request's connection a byte stream to a machine's serial console.
func (s *Server) connectConsole(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	m, err := s.findMachine(s.cfg.Reader.View(), name)
	if err != nil {
		failureOf(err).write(w)
		return
	}
	if f := s.upgradable(w, r); f != nil {
		f.write(w)
		return
	}
	if m.Intent.Spec.Console == "" || s.cfg.Consoles == nil {
		fail(codeConsole, "node %q has no console configured; enroll it with --console tcp://HOST:PORT, or with --console ipmi-sol", name).write(w)
		return
	}
	opening, stop := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer stop()
	console, err := s.cfg.Consoles.Dial(opening, name)
	if err != nil {
		s.cfg.Log.InfoContext(r.Context(), "console not opened", "node", name, "error", err)
		fail(codeConsole, "the console of node %q can't be reached: %v", name, err).write(w)
		return
	}
	defer func() { _ = console.Close() }()
	s.takeOver(w, r, console)
}

func (s *Server) consoleLogin(ctx context.Context, in *byName) (*body[api.ConsoleLogin], error) {
	if _, err := s.findMachine(s.cfg.Reader.View(), in.Name); err != nil {
		return nil, err
	}
	none := fail(codeNoBoot, "node %q did not boot from this site, so its console has no login; power it on: nearmetal node power on %s --env NAME",
		in.Name, in.Name)
	if s.cfg.Consoles == nil {
		return nil, none
	}
	user, password, err := s.cfg.Consoles.Password(ctx, in.Name)
	if errors.Is(err, state.ErrNotFound) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Log.InfoContext(ctx, "console password disclosed", "node", in.Name, "to", userOf(ctx))
	return &body[api.ConsoleLogin]{api.ConsoleLogin{User: user, Password: password}}, nil
}

func (s *Server) bmcLogin(ctx context.Context, in *byName) (*body[api.BMCLogin], error) {
	if _, err := s.findMachine(s.cfg.Reader.View(), in.Name); err != nil {
		return nil, err
	}
	none := fail(codeNoBMCPassword, "the site has no BMC password of node %q; enter one: nearmetal node set %s --bmc-password-file FILE", in.Name, in.Name)
	if s.cfg.Consoles == nil {
		return nil, none
	}
	login, err := s.cfg.Consoles.BMC(ctx, in.Name)
	if errors.Is(err, state.ErrNotFound) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Log.InfoContext(ctx, "BMC password disclosed", "node", in.Name, "to", userOf(ctx))
	return &body[api.BMCLogin]{login}, nil
}
