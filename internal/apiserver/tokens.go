package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func (s *Server) listTokens(context.Context, *struct{}) (*body[api.List[api.TokenInfo]], error) {
	list := api.List[api.TokenInfo]{Items: []api.TokenInfo{}}
	for _, t := range s.cfg.Reader.View().Tokens {
		shown := *t
		shown.SHA256 = ""
		list.Items = append(list.Items, shown)
	}
	return &body[api.List[api.TokenInfo]]{list}, nil
}

// Limits of a token.
const (
	maxUser     = 64
	maxValidFor = api.Duration(3650 * 24 * time.Hour)
)

// checkToken refuses what no token can be, and fills in the project of those who have one.
func checkToken(req *api.TokenRequest, src *manifest.Source) error {
	var problems []api.FieldProblem
	wrong := func(path, value, format string, args ...any) {
		problems = append(problems, api.FieldProblem{Location: path, Line: src.Line(path), Value: value, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case req.User == "":
		wrong("user", "", "is missing; name the user of the token")
	case len(req.User) > maxUser:
		wrong("user", req.User, "is %d bytes long; use at most %d", len(req.User), maxUser)
	case strings.ContainsFunc(req.User, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }):
		wrong("user", req.User, "%q holds spaces or unprintable characters; write a name like alice", req.User)
	}
	switch req.Role {
	case api.RoleMember, api.RoleViewer:
		if req.Project == "" && !src.Has("project") {
			req.Project = api.DefaultProject
		}
		if problem := manifest.LabelProblem(req.Project, manifest.MaxProjectName); problem != "" {
			wrong("project", req.Project, "%q %s", req.Project, problem)
		}
	case api.RoleAdmin, api.RoleAgent:
		if req.Project != "" || src.Has("project") {
			wrong("project", req.Project, "is given, but a token of role %q has no project; omit it", req.Role)
		}
	case "":
		wrong("role", "", "is missing; use admin, member, viewer or agent")
	default:
		roles := []string{string(api.RoleAdmin), string(api.RoleMember), string(api.RoleViewer), string(api.RoleAgent)}
		hint := "use admin, member, viewer or agent"
		if near := manifest.Closest(string(req.Role), roles); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		wrong("role", string(req.Role), "%q is not a role; %s", req.Role, hint)
	}
	switch {
	case req.ValidFor == 0 && !src.Has("valid_for"):
	case req.ValidFor < api.Duration(time.Second):
		wrong("valid_for", req.ValidFor.String(), "%s is too short; leave it out for a token that is valid until it is revoked", req.ValidFor)
	case req.ValidFor > maxValidFor:
		wrong("valid_for", req.ValidFor.String(), "%s is too long; the limit is %s", req.ValidFor, maxValidFor)
	}
	if len(problems) > 0 {
		return failFields(codeInvalidRequest, problems...)
	}
	return nil
}

func (s *Server) createToken(ctx context.Context, in *rawBody) (*created[api.NewToken], error) {
	req, src, err := readBody[api.TokenRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := checkToken(&req, src); err != nil {
		return nil, err
	}
	token := trust.NewToken(s.cfg.Pin)
	info := api.TokenInfo{
		ID: token.ID(), User: req.User, Project: req.Project, Role: req.Role, SHA256: token.SHA256(), CreatedAt: s.cfg.Now().UTC(),
	}
	if req.ValidFor > 0 {
		end := info.CreatedAt.Add(req.ValidFor.Std())
		info.ExpiresAt = &end
	}
	revision, err := s.cfg.Writer.CreateToken(ctx, info)
	if errors.Is(err, state.ErrNoProject) {
		return nil, noProject(req.Project)
	}
	if err != nil {
		return nil, err
	}
	// The token is told when it is good here.
	s.readOwnWrite(ctx, revision)
	info.SHA256 = ""
	return &created[api.NewToken]{Location: "/v1/tokens/" + info.ID, Body: api.NewToken{TokenInfo: info, Token: token.Line()}}, nil
}

func (s *Server) revokeToken(ctx context.Context, in *byID) (*struct{}, error) {
	revision, err := s.cfg.Writer.DeleteToken(ctx, "", in.ID)
	if errors.Is(err, state.ErrNotFound) {
		return nil, fail(codeNoToken, "token %q does not exist; 'nearmetal token list' lists the tokens", in.ID)
	}
	if err != nil {
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}
