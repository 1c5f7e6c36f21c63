"""What goes wrong over HTTP: a status and an error object in the shape of OpenAI's API."""

import msgspec

from freehold.impl.serving.loop import EngineUnavailable, RequestTimedOut
from freehold.spec.errors import FreeholdError, InvalidInput, Unsupported


class BadRequest(InvalidInput):
    """A request that cannot be served as it is. param: the field at fault. code: for programs."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class NotFound(BadRequest):
    """There is nothing of that name."""

    status = 404


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of an error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An error object."""

    error: ErrorDetail


def status_of(error: FreeholdError) -> int:
    """400 and 404 are the client's doing, 503 means that another server might do better, 500 is ours."""
    match error:
        case BadRequest():
            return error.status
        case InvalidInput() | Unsupported():
            return 400
        case EngineUnavailable() | RequestTimedOut():
            return 503
        case _:
            return 500


def error_body(error: FreeholdError) -> bytes:
    """The JSON error object of an error."""
    status = status_of(error)
    return message_body(
        str(error),
        kind="invalid_request_error" if status < 500 else "service_unavailable" if status == 503 else "server_error",
        param=getattr(error, "param", None),
        code=getattr(error, "code", None),
    )


def message_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    """A JSON error object."""
    return msgspec.json.encode(ErrorBody(ErrorDetail(message=message, type=kind, param=param, code=code)))
