package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// problemType is the media type of problem details (RFC 9457, section 3).
const problemType = "application/problem+json"

// failure is an api.Problem as huma wants errors to be.
type failure struct{ api.Problem }

func (f *failure) Error() string             { return f.Detail }
func (f *failure) GetStatus() int            { return f.Status }
func (f *failure) ContentType(string) string { return problemType }

// fail makes the error of a code. The detail says what was wrong, where, and what to do.
func fail(c Code, format string, args ...any) *failure {
	return &failure{api.Problem{
		Type: "urn:nearmetal:problem:" + c.Code, Title: c.Title, Status: c.Status, Code: c.Code, Detail: fmt.Sprintf(format, args...),
	}}
}

// failFields makes the error of a request with wrong fields.
func failFields(c Code, problems ...api.FieldProblem) *failure {
	f := fail(c, "%s", (&manifest.Invalid{Problems: problems}).Error())
	f.Errors = problems
	return f
}

// failInvalid turns what manifest found into a problem: malformed text is another code than wrong fields.
func failInvalid(err error, wrong Code) error {
	var invalid *manifest.Invalid
	if !errors.As(err, &invalid) {
		return err
	}
	if invalid.Malformed {
		f := failFields(codeMalformed, invalid.Problems...)
		f.Detail = "the request's body: " + f.Detail
		return f
	}
	return failFields(wrong, invalid.Problems...)
}

// asFailure turns any error of a handler into a problem. What is not meant for the user is logged, not told.
func (s *Server) asFailure(ctx context.Context, err error) (f *failure) {
	defer func() { entryOf(ctx).code = f.Code }()
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, store.ErrClosed), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		s.cfg.Log.WarnContext(ctx, "request not served", "request", requestID(ctx), "error", err)
		return fail(codeUnavailable, "the state store does not answer now (%s); check whether the change was made, then try again",
			reason(err))
	case errors.Is(err, state.ErrNewerFormat):
		return fail(codeUnavailable, "%v", err)
	default:
		s.cfg.Log.ErrorContext(ctx, "request failed", "request", requestID(ctx), "error", err)
		return fail(codeInternal, "the server failed; its log explains why under request %s", requestID(ctx))
	}
}

func reason(err error) string {
	switch {
	case errors.Is(err, store.ErrClosed):
		return "it is closed"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	default:
		return "the request was abandoned"
	}
}

// write sends the problem.
func (f *failure) write(w http.ResponseWriter) {
	if rec, ok := w.(*recorder); ok {
		rec.entry.code = f.Code
	}
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	if f.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="nearmetal"`) // RFC 6750, section 3
	}
	w.WriteHeader(f.Status)
	// A client that does not take the answer is gone; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(f.Problem)
}

// MarshalJSON writes the problem alone.
func (f *failure) MarshalJSON() ([]byte, error) { return json.Marshal(f.Problem) }

// translate turns errors that huma makes itself (parameters, body limits) into problems of ours.
func translate(_ huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	switch model.Status {
	case http.StatusRequestEntityTooLarge:
		return fail(codeTooLarge, "the request's body is longer than %d bytes, the most that is read", manifest.MaxBytes), nil
	case http.StatusRequestTimeout:
		return fail(codeTimeout, "the request's body was not complete in time; send it again"), nil
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if len(model.Errors) == 0 { // not of a parameter: the body is missing, or broke off
			return fail(codeMalformed, "the request's body: is empty or incomplete; send a complete body"), nil
		}
		f := fail(codeParameter, "")
		f.Status = model.Status // decided before this is called; checkQuery leaves nothing for it
		for _, e := range model.Errors {
			f.Errors = append(f.Errors, api.FieldProblem{Location: e.Location, Value: fmt.Sprint(e.Value), Message: e.Message})
		}
		f.Detail = (&manifest.Invalid{Problems: f.Errors}).Error()
		return f, nil
	default:
		return fail(codeInternal, "the server failed: %s", model.Title), nil
	}
}
